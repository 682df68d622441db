"""The suites of all languages tell the same stories."""

from pathlib import Path

import test_stories_context
import test_stories_life
import test_stories_lifecycle
import test_stories_network
import test_stories_sandbox
import test_stories_session


def test_stories_are_those_of_every_language():
    listed = (Path(__file__).parents[1] / "stories.txt").read_text().split()
    told = [name.removeprefix("test_")
            for module in (test_stories_sandbox, test_stories_lifecycle, test_stories_session,
                           test_stories_life, test_stories_context, test_stories_network)
            for name in vars(module) if name.startswith("test_")]
    assert sorted(told) == sorted(listed)

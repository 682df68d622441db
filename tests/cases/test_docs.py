"""The commands of README and the guides, run as they stand.

Every `sh` block of a page is run, in order and in one shell, so that a later block sees what an
earlier one set. A comment right before a block says otherwise, and shows on no page:

    <!-- not run: REASON -->    needs something that only the reader has
    <!-- until Ctrl-C -->       follows for ever: Ctrl-C is pressed after a while
    <!-- as root -->            left out where the suite runs without root

A remark `# … exit code N` names the exit code that a command passes on; all others are 0. Words in
capitals that the reader replaces are replaced by what the page made last. `outlive serve` is the
suite's server, which runs already.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from outlive_testing.server import REPOSITORY, binary

PAGES = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/guides/*.md"))]
BLOCK = re.compile(r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```sh\n(?P<code>.*?)^```$", re.M | re.S)
WORDS = {
    "SANDBOX": '"$SANDBOX"',
    "SESSION": '"$SESSION"',
    "KEY-ID": '"$(whole key list --json | jq -r ".keys[-1].id")"',
}
PRELUDE = """
set -eEu
trap 'echo "$at: $BASH_COMMAND: exit code $?" >&2' ERR
whole() {
    case "$1 ${2-}" in
        serve*) ;;
        "run -d") ids=$("$OUTLIVE" "$@") && echo "$ids" && read -r SANDBOX SESSION <<< "$ids" ;;
        *) "$OUTLIVE" "$@" ;;
    esac
}
interrupted() {
    code=0
    timeout --signal INT 2 "$OUTLIVE" "$@" || code=$?
    [ "$code" = 124 ]
}
outlive() { whole "$@"; }
"""


def runnable(code: str) -> str:
    """A block with the reader's words replaced and the exit codes that it names expected."""
    names = "|".join(WORDS)
    code = re.sub(rf"(?<![\w$\"{{-])(?:{names})(?![\w=-])", lambda word: WORDS[word[0]], code)
    return re.sub(r"^(.*?)( +#.*exit code (\d+).*)$", r"\1 || [ $? = \3 ]\2", code, flags=re.M)


def blocks(page: str) -> list[str]:
    """What is run of a page, each block with the place where it stands."""
    text, found = (REPOSITORY / page).read_text(), []
    for match in BLOCK.finditer(text):
        note, line = match["note"], text.count("\n", 0, match.start("code")) + 1
        kind, _, reason = (note or "").partition(": ")
        at = f"at={page}:{line}\n"
        if kind == "not run":
            assert reason, f"{page}:{line}: why is it not run?"
        elif kind == "until Ctrl-C":
            found.append(f"{at}outlive() {{ interrupted \"$@\"; }}\n{runnable(match['code'])}"
                         'outlive() { whole "$@"; }\n')
        elif kind == "as root":
            found += [at + runnable(match["code"])] if os.geteuid() == 0 else []
        else:
            assert note is None, f"{page}:{line}: what does {note!r} mean?"
            found.append(at + runnable(match["code"]))
    return found


def pages() -> list[str]:
    return [str(page.relative_to(REPOSITORY)) for page in PAGES if "```sh" in page.read_text()]


def test_a_block_is_run_as_its_remarks_say():
    assert runnable("outlive run -- false  # exit code 1\n") == \
        "outlive run -- false || [ $? = 1 ]  # exit code 1\n"
    assert runnable('x SANDBOX "$SANDBOX" SANDBOX-ID ${SANDBOX}') == \
        'x "$SANDBOX" "$SANDBOX" SANDBOX-ID ${SANDBOX}'
    assert len(blocks("README.md")) >= 1


@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page_work(page, server, own):
    session = own.session("cat")
    environment = {**os.environ, "OUTLIVE": str(binary()), "OUTLIVE_DATA": str(server.data),
                   "OUTLIVE_URL": server.url, "OUTLIVE_TOKEN": server.token,
                   "SANDBOX": own.id, "SESSION": session.id, "XDG_CONFIG_HOME": "/nonexistent"}
    script = PRELUDE + "".join(blocks(page)) + "at='the end'\n"
    ran = subprocess.run(["bash", "-c", script], env=environment, cwd=REPOSITORY, text=True,
                         stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert ran.returncode == 0, f"{ran.stderr}\n{ran.stdout}"

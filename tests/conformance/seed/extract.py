"""Reads the documentation's own snippets and makes runnable programs of them.

The text of every snippet is used as it stands in `snippets.mdx`; what is put around it is what the
page says the reader has already done: a client for this URL and token, and a sandbox.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

PAGE = Path(__file__).with_name("snippets.mdx")
SECTIONS = {
    "Create A Long-Running Session": "create",
    "Follow Output And Reconnect": "follow",
    "Send Input And EOF": "input",
}


def snippets() -> dict[tuple[str, str], str]:
    """The snippets by (section, language), unescaped from their template literals."""
    found, section = {}, None
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        section = SECTIONS[title.strip()]
        for language, code in re.findall(r'language: "(\w+)",\s*code: `(.*?)`\s*\}', body, re.S):
            found[section, language] = re.sub(r"\\(.)", r"\1", code)
    return found


def python(code: dict[str, str], url: str, token: str) -> str:
    return f'''
from sandbox0 import Client
client = Client(base_url={url!r}, token={token!r}, timeout=60)
sandbox = client.claim_sandbox("default")
{code["create"]}
{code["follow"]}
session = sandbox.create_session(ExecutionSessionSpec.from_dict({{"command": ["/bin/cat"]}}))
{code["input"]}
with sandbox.watch_session_events(session.id) as stream:
    for event in stream.iter_events():
        value = event.to_dict()
        print("event", value["type"], base64.b64decode(value.get("data_base64", "")))
        if value["type"] == "attempt.exited":
            break
client.delete_sandbox(sandbox.id)
'''


def typescript(code: dict[str, str], url: str, token: str) -> str:
    return f'''
import {{ Client }} from "sandbox0";
const client = new Client({{ baseUrl: {url!r}, token: {token!r} }});
const sandbox = await client.sandboxes.claim("default");
{{
{code["create"]}
{code["follow"]}
}}
{{
const session = await sandbox.createSession({{ command: ["/bin/cat"] }});
{code["input"]}
for await (const event of await sandbox.watchSessionEvents(session.id)) {{
  console.log("event", event.type, Buffer.from(event.dataBase64 ?? "", "base64").toString());
  if (event.type === "attempt.exited") break;
}}
}}
await client.sandboxes.delete(sandbox.id);
process.exit(0);
'''


def go(code: dict[str, str], url: str, token: str) -> str:
    return f'''package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"log"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
	"github.com/sandbox0-ai/sdk-go/pkg/apispec"
)

func main() {{
	ctx := context.Background()
	client, err := sandbox0.NewClient(sandbox0.WithBaseURL("{url}"), sandbox0.WithToken("{token}"))
	if err != nil {{
		log.Fatal(err)
	}}
	sandbox, err := client.ClaimSandbox(ctx, "default")
	if err != nil {{
		log.Fatal(err)
	}}
	worker(ctx, sandbox)
	cat(ctx, sandbox)
	if _, err := client.DeleteSandbox(ctx, sandbox.ID); err != nil {{
		log.Fatal(err)
	}}
}}

func worker(ctx context.Context, sandbox *sandbox0.Sandbox) {{
{textwrap.indent(code["create"], "	")}
{textwrap.indent(code["follow"], "	")}
}}

func cat(ctx context.Context, sandbox *sandbox0.Sandbox) {{
	session, failed := sandbox.CreateSession(ctx, apispec.ExecutionSessionSpec{{Command: []string{{"/bin/cat"}}}}, nil)
	if failed != nil {{
		log.Fatal(failed)
	}}
	write(ctx, sandbox, session)
	stream, err := sandbox.WatchSessionEvents(ctx, session.ID, nil)
	if err != nil {{
		log.Fatal(err)
	}}
	for {{
		event, err := stream.Recv()
		if err != nil {{
			log.Fatal(err)
		}}
		data, err := base64.StdEncoding.DecodeString(event.DataBase64.Or(""))
		if err != nil {{
			log.Fatal(err)
		}}
		fmt.Println("event", event.Type, string(data))
		if event.Type == "attempt.exited" {{
			return
		}}
	}}
}}

func write(ctx context.Context, sandbox *sandbox0.Sandbox, session *apispec.ExecutionSession) {{
{textwrap.indent(code["input"], "	")}
}}
'''


def bash(code: dict[str, str]) -> str:
    """The page's command is `s0`; ours stands in for it, and a Ctrl-C is pressed after some seconds."""
    return f'''
set -eu
s0() {{
    if [ "${{!#}}" = --follow ]; then
        timeout --signal INT 4 "$OUTLIVE" "$@" || [ $? = 124 ] || [ $? = 130 ]
    else
        "$OUTLIVE" "$@"
    fi
}}
SANDBOX_ID="$(s0 -o json sandbox create -t default | jq -r .sandbox_id)"
{code["create"]}
{code["follow"]}
SESSION_ID="$(s0 -o json sandbox session create "$SANDBOX_ID" -- /bin/cat | jq -r .id)"
{code["input"]}
s0 sandbox session events "$SANDBOX_ID" "$SESSION_ID" --follow
s0 sandbox delete "$SANDBOX_ID"
'''


def programs(url: str, token: str) -> dict[str, str]:
    """One program a language: its three snippets, in the order of the page."""
    found = snippets()
    code = {language: {section: found[section, language] for section in SECTIONS.values()}
            for language in ("python", "typescript", "go", "bash")}
    return {"python": python(code["python"], url, token),
            "typescript": typescript(code["typescript"], url, token),
            "go": go(code["go"], url, token),
            "bash": bash(code["bash"])}

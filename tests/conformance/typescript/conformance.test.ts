/** Tells every story against one server. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import type { Client, Sandbox } from "sandbox0";
import { Server } from "./harness.ts";
import { contextStories } from "./stories_context.ts";
import { controlStories, recoveryStories } from "./stories_life.ts";
import { lifecycleStories } from "./stories_lifecycle.ts";
import { networkStories } from "./stories_network.ts";
import { sandboxStories } from "./stories_sandbox.ts";
import { sessionStories } from "./stories_session.ts";

const server = new Server();
let client: Client;
let shared: Sandbox;

before(async () => {
  await server.start();
  client = server.client();
  shared = await client.sandboxes.claim("default");
});

after(() => server.stop());

const withClient = { ...sandboxStories, ...lifecycleStories, ...recoveryStories, ...networkStories };
const withSandbox = { ...sessionStories, ...controlStories, ...contextStories };
const limits = { timeout: 120_000 };

for (const [name, tell] of Object.entries(withClient)) test(name, limits, () => tell(client));
for (const [name, tell] of Object.entries(withSandbox)) test(name, limits, () => tell(shared));

test("stories_are_those_of_every_language", () => {
  const listed = readFileSync(join(import.meta.dirname, "../stories.txt"), "utf8").trim().split("\n");
  assert.deepEqual([...Object.keys(withClient), ...Object.keys(withSandbox)].sort(), listed.sort());
});

/** What a sandbox reaches, through the vendor's TypeScript client. */
import assert from "node:assert/strict";
import type { Client, Sandbox } from "sandbox0";
import { refused, shell, text, toExit } from "./harness.ts";

type Policy = Parameters<Sandbox["updateNetworkPolicy"]>[0];

// Nobody has this address; a sandbox that may not reach it is told so within seconds.
const NOBODY = "timeout 10 bash -c 'exec 3<>/dev/tcp/198.51.100.1/9' 2>&1";

const RULES: Policy = {
  mode: "block-all",
  egress: {
    trafficRules: [
      { name: "mail", action: "deny", ports: [{ port: 25, protocol: "tcp" }] },
      { action: "allow", cidrs: ["192.0.2.0/24"], ports: [{ port: 1, endPort: 1024 }] },
    ],
  },
};

async function isRefused(sandbox: Sandbox): Promise<boolean> {
  const session = await sandbox.createSession(shell(NOBODY));
  return text(await toExit(sandbox, session.id)).includes("No route to host");
}

/** A policy without what the client fills in: undefined, and empty lists. */
const words = (policy: Policy) =>
  JSON.parse(JSON.stringify(policy, (_key, value) =>
    Array.isArray(value) && value.length === 0 ? undefined : value));

export const networkStories = {
  async network_policy_is_read_and_written(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const got = await sandbox.getNetworkPolicy();
    assert.equal(got.mode, "allow-all");
    assert.deepEqual(words(await sandbox.updateNetworkPolicy(got)), words(got));
    assert.deepEqual(words(await sandbox.updateNetworkPolicy({ mode: "block-all" })), { mode: "block-all" });
    assert.ok(await isRefused(sandbox));
    assert.deepEqual(words(await sandbox.updateNetworkPolicy(RULES)), RULES);
    assert.deepEqual(words(await sandbox.getNetworkPolicy()), RULES);
    await client.sandboxes.delete(sandbox.id);
  },

  async network_policy_holds_from_the_claim_on(client: Client) {
    const denied: Policy = { mode: "allow-all", egress: { deniedCidrs: ["198.51.100.0/24"] } };
    const sandbox = await client.sandboxes.claim("default", { network: denied });
    assert.deepEqual(words(await sandbox.getNetworkPolicy()), denied);
    assert.ok(await isRefused(sandbox));
    await client.sandboxes.delete(sandbox.id);
  },

  async network_policy_refuses_what_it_cannot_enforce(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const before = words(await sandbox.getNetworkPolicy());
    const names: Policy = {
      mode: "block-all",
      egress: { trafficRules: [{ action: "allow", domains: ["example.org"] }] },
    };
    const error = await refused(sandbox.updateNetworkPolicy(names), 422, "unsupported");
    assert.match(error.message, /trafficRules\[0\]\.domains/);
    assert.deepEqual(words(await sandbox.getNetworkPolicy()), before);
    await client.sandboxes.delete(sandbox.id);
  },
};

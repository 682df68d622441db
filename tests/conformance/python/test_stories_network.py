"""What a sandbox reaches, through the vendor's Python client."""

from drive import create, plain, refused, shell, to_exit, written
from sandbox0.apispec.models.sandbox_config import SandboxConfig
from sandbox0.apispec.models.sandbox_network_policy import SandboxNetworkPolicy

# Nobody has this address; a sandbox that may not reach it is told so within seconds.
NOBODY = "timeout 10 bash -c 'exec 3<>/dev/tcp/198.51.100.1/9' 2>&1"
REFUSED = b"No route to host"

RULES = {"mode": "block-all", "egress": {"trafficRules": [
    {"name": "mail", "action": "deny", "ports": [{"port": 25, "protocol": "tcp"}]},
    {"action": "allow", "cidrs": ["192.0.2.0/24"], "ports": [{"port": 1, "endPort": 1024}]}]}}


def policy(written_as):
    return SandboxNetworkPolicy.from_dict(written_as)


def is_refused(sandbox):
    return REFUSED in written(to_exit(sandbox, create(sandbox, shell(NOBODY)).id))


def words(got):
    """A policy without the empty lists that the client fills in."""
    def without(value):
        if isinstance(value, list):
            return [without(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        return {key: without(inner) for key, inner in value.items() if inner != []}
    return without(plain(got))


def test_network_policy_is_read_and_written(client):
    sandbox = client.claim_sandbox("default")
    got = sandbox.get_network_policy()
    assert got.mode.value == "allow-all"
    assert words(sandbox.update_network_policy(got)) == words(got)
    assert words(sandbox.update_network_policy(policy({"mode": "block-all"}))) == {
        "mode": "block-all"}
    assert is_refused(sandbox)
    assert words(sandbox.update_network_policy(policy(RULES))) == RULES
    assert words(sandbox.get_network_policy()) == RULES
    client.delete_sandbox(sandbox.id)


def test_network_policy_holds_from_the_claim_on(client):
    denied = {"mode": "allow-all", "egress": {"deniedCidrs": ["198.51.100.0/24"]}}
    sandbox = client.claim_sandbox("default", SandboxConfig.from_dict({"network": denied}))
    assert words(sandbox.get_network_policy()) == denied
    assert is_refused(sandbox)
    client.delete_sandbox(sandbox.id)


def test_network_policy_refuses_what_it_cannot_enforce(client):
    sandbox = client.claim_sandbox("default")
    before = words(sandbox.get_network_policy())
    names = policy({"mode": "block-all", "egress": {"trafficRules": [
        {"action": "allow", "domains": ["example.org"]}]}})
    error = refused(422, "unsupported", sandbox.update_network_policy, names)
    assert "trafficRules[0].domains" in str(error)
    assert words(sandbox.get_network_policy()) == before
    client.delete_sandbox(sandbox.id)

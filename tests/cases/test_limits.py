"""What a sandbox may use and reach, asked for over HTTP and seen from inside.

These stories need root: the runtime is `namespace`.
"""

from __future__ import annotations

import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from outlive_testing import networks
from outlive_testing.api import Api, Failure, output
from outlive_testing.server import Server, wait_until
from test_cli import cli, finished


def said(session) -> bytes:
    session.wait_exit(30)
    return output(session.events())


@pytest.fixture
def limited(api):
    made = []

    def make(**config):
        made.append(api.sandbox(**config))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.delete()


def test_memory_that_runs_out_is_the_reason(limited):  # case B4
    sandbox = limited(resources={"memory": "64Mi"})
    exited = sandbox.session("/usr/bin/tail", "/dev/zero").wait_exit(60)
    assert (exited["reason"], exited["signal"], exited["oom"]) == ("killed", "SIGKILL", True)
    # Only who took too much is ended; a plain kill isn't called the same.
    sleeper = sandbox.session("/bin/sleep", "1000")
    sleeper.signal("KILL")
    exited = sleeper.wait_exit()
    assert (exited["signal"], exited["oom"]) == ("SIGKILL", False)


def test_files_of_memory_leave_room_to_remove_them(limited):
    """They count against the limit: full of them, a sandbox could start nothing any more."""
    sandbox = limited(resources={"memory": "64Mi"})
    fill = sandbox.sh("""
        for place in /dev /dev/shm /run; do
            head -c 300M /dev/zero > $place/big
            i=0; while [ $i -lt 20000 ] && true > $place/$i; do i=$((i+1)); done
        done 2>&1 | grep -c 'No space left'""")
    assert int(said(fill)) == 6
    assert sandbox.sh("cd /dev/shm && rm -f big [0-9]* && echo room > big").wait_exit()["exit_code"] == 0


def test_processes_and_cpu_are_bounded(limited):
    sandbox = limited(resources={"pids": 24, "cpu": "0.5"})
    script = "i=0; while [ $i -lt 40 ]; do sleep 20 & i=$((i+1)); done 2>/dev/null; echo never"
    assert b"never" not in said(sandbox.sh(script))
    # A second of work takes two at half a core.
    spin = "import time; a=time.monotonic(); " \
           "exec('while time.process_time() < 1: pass'); print(time.monotonic() - a)"
    assert float(said(sandbox.session("/usr/bin/python3", "-c", spin))) > 1.5
    assert sandbox.get()["resources"] == {"pids": 24, "cpu": "0.5"}


def change_limits(sandbox, **resources):
    shown = sandbox.api.call("PUT", sandbox.path, {"config": {"resources": resources}})["resources"]
    assert shown == sandbox.get()["resources"] == resources


def takes_200_mib(sandbox) -> bool:
    exited = sandbox.session("/usr/bin/python3", "-c", "b'x' * (200 << 20)").wait_exit(60)
    assert exited.get("signal") == "SIGKILL" or exited["exit_code"] == 0
    return exited.get("exit_code") == 0


FORTY = """import subprocess
started = []
try:
    while len(started) < 40: started.append(subprocess.Popen(["sleep", "20"]))
    print("all")
except BlockingIOError:
    print("not all")
for one in started: one.kill()
for one in started: one.wait()
"""


def starts_40(sandbox) -> bool:
    return said(sandbox.session("/usr/bin/python3", "-c", FORTY)) == b"all\n"


def test_limits_that_change_hold_at_once(limited):
    """They were shown, and the old ones went on to kill."""
    sandbox = limited(resources={"memory": "64Mi", "pids": 24, "cpu": "0.5"})
    assert not takes_200_mib(sandbox) and not starts_40(sandbox)
    change_limits(sandbox, memory="512Mi", pids=200, cpu="2")
    assert takes_200_mib(sandbox) and starts_40(sandbox)
    change_limits(sandbox, memory="64Mi", pids=24)
    assert not takes_200_mib(sandbox) and not starts_40(sandbox)
    # While everything stands still, and without a limit.
    sandbox.suspend()
    change_limits(sandbox, pids=200)
    sandbox.wake()
    assert takes_200_mib(sandbox) and starts_40(sandbox)


def test_a_limit_that_can_not_be_had_now_changes_nothing(limited):
    before = {"memory": "512Mi", "pids": 200}
    sandbox = limited(resources=before)
    holder = sandbox.session("/usr/bin/python3", "-c", "import time; x = b'x' * (200 << 20); "
                                                       "print('up', flush=True); time.sleep(1000)")
    holder.wait_output(b"up")
    # In use, and never limited since it was started.
    for resources in [{"memory": "64Mi", "pids": 24}, {"pids": 24, "cpu": "0.5"}]:
        with pytest.raises(Failure) as refused:
            change_limits(sandbox, **resources)
        assert (refused.value.status, refused.value.code) == (409, "conflict")
        assert "pause the sandbox" in str(refused.value)
        assert sandbox.get()["resources"] == before
        assert starts_40(sandbox)
    assert holder.get()["phase"] == "running"
    sandbox.pause()
    change_limits(sandbox, memory="64Mi", pids=24, cpu="0.5")
    sandbox.resume()
    assert not takes_200_mib(sandbox) and not starts_40(sandbox)


@pytest.mark.parametrize("resources", [
    {"disk": "1Ki"}, {"memory": "lots"}, {"memory": "0"}, {"cpu": "-1"}, {"pids": 0}, {"pids": 2**40},
])
def test_a_limit_that_makes_no_sense_is_refused(api, resources):
    with pytest.raises(Failure) as refused:
        api.sandbox(resources=resources)
    assert (refused.value.status, refused.value.code) == (400, "bad_request")


def test_a_full_disk_stops_the_sandbox_and_a_resume_gives_time_to_make_room(limited):
    """It is measured, so it has a little more than it may for a moment; nothing of it is lost."""
    sandbox = limited(resources={"disk": "16Mi"})
    assert sandbox.api.bare("GET", "/healthz")["capabilities"]["disk_limit"] == "checked"
    fill = "while :; do head -c 1048576 /dev/zero >> /root/big; sleep 0.02; done"
    writer = sandbox.sh(fill)
    sandbox.wait_state("frozen")
    disk = sandbox.get()["disk"]
    assert disk.pop("used_bytes") > 16 << 20
    assert disk == {"limit": "16Mi", "full": True, "enforced_by": "checked"}
    assert sandbox.activity()["disk_full"] is True
    assert writer.get()["phase"] == "paused"
    with pytest.raises(Failure) as refused:
        sandbox.sh("echo never")
    assert (refused.value.status, refused.value.code) == (507, "disk_full")
    sandbox.resume()
    writer.delete()
    assert sandbox.sh("rm /root/big").wait_exit()["exit_code"] == 0
    wait_until(lambda: not sandbox.get()["disk"]["full"], 15, "room on the disk")
    # /tmp counts, too; and so does a higher limit.
    writer = sandbox.sh("head -c 20000000 /dev/zero > /tmp/big")
    sandbox.wait_state("frozen")
    sandbox.api.call("PUT", sandbox.path, {"config": {"resources": {"disk": "1Gi"}}})
    wait_until(lambda: not sandbox.get()["disk"]["full"], 15, "room on the disk")
    sandbox.resume()  # It may have stood still before its end.
    assert writer.wait_exit()["exit_code"] == 0
    assert said(sandbox.sh("stat -c %s /tmp/big")) == b"20000000\n"


def test_whoever_waits_is_told_that_the_disk_is_full(limited):
    """Neither the command line nor a call that waits had a word of it."""
    sandbox = limited(resources={"disk": "16Mi"})
    fill = ["sh", "-c", "head -c 20000000 /dev/zero > /root/big; sleep 0.1; read late; exit 7"]
    waiting = cli(sandbox.api, "sandbox", "exec", "-i", sandbox.id, "--", *fill, stdin=subprocess.PIPE)
    told = [waiting.stderr.readline().decode() for _ in range(4)]
    assert "its disk is full" in told[0], told
    assert f"outlive sandbox update {sandbox.id} --disk 32Mi" in told[1], told
    sandbox.api.call("PUT", sandbox.path, {"config": {"resources": {"disk": "32Mi"}}})
    wait_until(lambda: not sandbox.get()["disk"]["full"], 15, "room on the disk")
    assert finished(cli(sandbox.api, "sandbox", "wake", sandbox.id))[0] == 0
    assert b"goes on" in waiting.stderr.readline()
    assert finished(waiting)[0] == 7


def test_a_call_that_waits_ends_when_the_disk_is_full(limited):
    sandbox = limited(resources={"disk": "16Mi"})
    fill = ["sh", "-c", "head -c 20000000 /dev/zero > /root/big; while :; do sleep 1; done"]
    with pytest.raises(Failure) as refused:
        sandbox.api.call("POST", f"{sandbox.path}/contexts", {
            "type": "cmd", "cmd": {"command": fill}, "wait_until_done": True})
    assert (refused.value.status, refused.value.code) == (507, "disk_full")
    # It stays, and goes on when there is room.
    [context] = sandbox.api.call("GET", f"{sandbox.path}/contexts")["contexts"]
    assert context["paused"] is True


def test_what_stands_still_for_a_full_disk_can_be_deleted(limited):
    """It was 507, although what is deleted makes the room that is missing."""
    sandbox = limited(resources={"disk": "16Mi"})
    contexts = f"{sandbox.path}/contexts"
    fill = "trap 'rm /root/big; exit' TERM; head -c 20000000 /dev/zero > /root/big; while :; do sleep 0.1; done"
    context = sandbox.api.call("POST", contexts, {"type": "cmd", "cmd": {"command": ["sh", "-c", fill]}})
    session = sandbox.sh("sleep 1000")
    sandbox.wait_state("frozen")
    # This one makes no room: the others have the while that a resume gives.
    session.delete()
    with pytest.raises(Failure) as gone:
        session.get()
    assert gone.value.status == 404
    assert sandbox.get()["disk"]["full"]
    # This one makes it, in its own way.
    assert sandbox.api.call("DELETE", f"{contexts}/{context['id']}") == {"deleted": True}
    wait_until(lambda: not sandbox.get()["disk"]["full"], 15, "room on the disk")
    assert sandbox.activity()["state"] == "running"
    assert said(sandbox.sh("ls /root; echo room")) == b"room\n"


def test_a_copy_that_meets_the_limit_leaves_nothing_behind(limited, tmp_path):
    """Its context could not be deleted, and had what it had unpacked for minutes more."""
    sandbox = limited(resources={"disk": "16Mi"})
    with open(tmp_path / "big", "wb") as file:
        file.truncate(1 << 30)
    code, _, told = finished(cli(sandbox.api, "sandbox", "cp", tmp_path / "big", f"{sandbox.id}:/root/big"))
    assert code != 0, told
    assert sandbox.api.call("GET", f"{sandbox.path}/contexts")["contexts"] == []
    wait_until(lambda: not sandbox.get()["disk"]["full"], 15, "room on the disk")
    assert said(sandbox.sh("ls -A /root")) == b""


@pytest.mark.parametrize("hide", [
    "exec 3<> /root/big; rm /root/big; while :; do head -c 1048576 /dev/zero >&3; sleep 0.02; done",
    """exec python3 -c '
import mmap, os, time
file = open("/root/big", "wb+")
file.truncate(32 << 20)
memory = mmap.mmap(file.fileno(), 32 << 20)
os.unlink("/root/big")
os.closerange(3, 64)
for _ in range(32):
    memory.write(b"z" * (1 << 20))
time.sleep(600)'""",
], ids=["open", "mapped"])
def test_a_file_without_a_name_counts_as_long_as_somebody_has_it(limited, hide):
    sandbox = limited(resources={"disk": "16Mi"})
    writer = sandbox.sh(hide)
    sandbox.wait_state("frozen")
    assert sandbox.get()["disk"]["full"] and sandbox.get()["disk"]["used_bytes"] > 16 << 20
    writer.delete()
    wait_until(lambda: not sandbox.get()["disk"]["full"], 15, "room on the disk")
    assert sandbox.sh("ls /root/big").wait_exit()["exit_code"] != 0


def test_the_network_that_holds_is_told(limited):
    assert limited(network={"mode": "none"}).get()["network"] == {"mode": "none"}
    sandbox = limited()
    assert sandbox.get()["network"] == {"mode": "bridge", "egress": {"default": "allow"}}
    rules = {"default": "deny", "allow": [{"cidr": "192.0.2.0/24", "ports": [443, "8000-8999"]}]}
    changed = sandbox.api.call("PUT", f"{sandbox.path}/network", {"egress": rules})
    # The vendor's clients read this answer, so it is in their words.
    assert changed == {
        "mode": "block-all",
        "egress": {"trafficRules": [{"action": "allow", "cidrs": ["192.0.2.0/24"],
                                     "ports": [{"port": 443}, {"port": 8000, "endPort": 8999}]}]}}
    assert sandbox.api.call("GET", f"{sandbox.path}/network") == changed
    assert sandbox.get()["network"] == {"mode": "bridge", "egress": rules}
    assert b"10.201." in said(sandbox.session("/sbin/ip", "-4", "-br", "address", "show", "eth0"))


SERVICE = "import socket; s = socket.create_server(('', 7777)); print('up', flush=True)\n" \
          "while True: s.accept()[0].sendall(b'hello')"


def heard(address: str) -> bytes:
    """What a service of a sandbox says to the host."""
    try:
        with socket.create_connection((address, 7777), timeout=1) as service:
            return service.recv(9)
    except OSError:
        return b""


def test_a_network_that_is_taken_away_is_gone_at_once(limited):
    """What reached nothing used to reach everything until its next runtime."""
    deny = {"mode": "bridge", "egress": {"default": "deny"}}
    sandbox = limited(network=deny)

    def change(network):
        shown = sandbox.api.call("PUT", sandbox.path, {"config": {"network": network}})["network"]
        assert sandbox.get()["network"] == shown
        return shown, networks.verdicts(sandbox.id), networks.is_cut(sandbox.id)

    address = said(sandbox.sh("hostname -I")).decode().strip()
    sandbox.session("/usr/bin/python3", "-c", SERVICE).wait_output(b"up")
    assert networks.verdicts(sandbox.id) == ["reject"]
    # The host's network can only be had from a start; until then nothing more is reached.
    assert change({"mode": "host"}) == ({"mode": "host", "in_force": "bridge"}, ["reject"], False)
    assert change({"mode": "none"}) == ({"mode": "none"}, ["reject"], True)
    assert heard(address) == b""
    assert change({"mode": "host"}) == ({"mode": "host", "in_force": "none"}, ["reject"], True)
    allow = {"mode": "bridge", "egress": {"default": "allow"}}
    assert change(allow) == (allow, ["accept"], False)
    assert heard(address) == b"hello"
    blocked = {"mode": "bridge", "policy": {"mode": "block-all"}}
    assert change({"mode": "block-all"}) == (blocked, ["reject"], False)
    assert change(allow)[1:] == (["accept"], False)
    # By the vendor's call, and while everything stands still.
    sandbox.suspend()
    sandbox.api.call("PUT", f"{sandbox.path}/network", {"mode": "none"})
    assert networks.is_cut(sandbox.id)
    sandbox.pause()
    sandbox.resume()
    assert sandbox.get()["network"] == {"mode": "none"}
    assert networks.left([sandbox.id]) == []


def test_limits_that_change_at_once_do_not_open_a_network_that_is_taken_away(limited):
    sandbox = limited(network={"mode": "bridge"}, resources={"pids": 200})

    def limit(pids):
        return sandbox.api.call("PUT", sandbox.path, {"config": {"resources": {"pids": pids}}})

    with ThreadPoolExecutor(3) as others:
        for turn in range(15):
            for mode in ("bridge", "none"):
                limiting = [others.submit(limit, 100 + 6 * turn + at) for at in range(3)]
                sandbox.api.call("PUT", f"{sandbox.path}/network", {"mode": mode})
                for limited_to in limiting:
                    limited_to.result()
                assert sandbox.get()["network"].get("in_force", mode) == mode
                assert networks.is_cut(sandbox.id) == (mode == "none")
    sandbox.api.call("PUT", f"{sandbox.path}/network", {"mode": "host"})
    assert networks.is_cut(sandbox.id)


def test_the_network_in_force_is_told_until_another_comes_about(limited):
    sandbox = limited(network={"mode": "host"})
    deny = {"mode": "bridge", "egress": {"default": "deny"}}
    shown = sandbox.api.call("PUT", sandbox.path, {"config": {"network": deny}})["network"]
    assert shown == {**deny, "in_force": "host"}
    # It may be sent back as it was shown.
    assert sandbox.api.call("PUT", sandbox.path, {"config": {"network": shown}})["network"] == shown
    sandbox.pause()
    assert sandbox.get()["network"] == deny
    sandbox.resume()
    assert sandbox.get()["network"] == deny
    assert networks.verdicts(sandbox.id) == ["reject"]


@pytest.mark.parametrize("network", [
    {"mode": "host", "egress": {}}, {"mode": "elsewhere"}, {"egress": {"allow": [{"cidr": "::/0"}]}},
    {"egress": {"allow": [{"cidr": "192.0.2.0/24", "ports": [0]}]}}, {"gates": []},
    {"mode": "block-all", "egress": {"allowedCidrs": ["nowhere"]}},
    {"egress": {}, "policy": {"mode": "allow-all"}},
])
def test_a_network_that_makes_no_sense_is_refused(api, network):
    with pytest.raises(Failure) as refused:
        api.sandbox(network=network)
    assert (refused.value.status, refused.value.code) == (400, "bad_request")


def test_an_owner_has_so_many_sandboxes_and_calls():
    arguments = ["--sandboxes-per-owner-max", "1", "--requests-per-owner-second-max", "5"]
    with Server(arguments=arguments) as server:
        api = Api(server)
        sandbox = api.sandbox()
        with pytest.raises(Failure) as refused:
            api.sandbox()
        assert (refused.value.status, refused.value.code) == (429, "quota_exceeded")
        with pytest.raises(Failure) as refused:
            for _ in range(100):
                sandbox.get()
        assert (refused.value.status, refused.value.code) == (429, "quota_exceeded")
        assert int(refused.value.headers["Retry-After"]) >= 1


def test_what_the_runtime_process_cannot_give_is_refused():
    with Server(arguments=["--runtime", "process"]) as server:
        api = Api(server)
        for config in ({"network": {"mode": "none"}}, {"network": {"mode": "bridge"}},
                       {"network": {"mode": "block-all"}}, {"user": "1000"},
                       {"resources": {"disk": "1Gi"}}):
            with pytest.raises(Failure) as refused:
                api.sandbox(**config)
            assert (refused.value.status, refused.value.code) == (422, "unsupported")
        assert api.call("GET", "/api/v1/sandboxes")["count"] == 0
        sandbox = api.sandbox(network={"mode": "allow-all"})
        assert sandbox.get()["network"] == {"mode": "host", "policy": {"mode": "allow-all"}}


def who(sandbox, **spec) -> list[str]:
    line = 'echo $(id -u) $(id -g) $(id -G) $USER $HOME $(umask) $PWD'
    return said(sandbox.sh(line, **spec)).decode().split()


def test_a_user_by_number_or_name_is_at_home(limited):  # case K2
    sandbox = limited(user="user")
    assert who(sandbox) == ["1000", "1000", "1000", "user", "/home/user", "0022", "/home/user"]
    assert who(sandbox, user="daemon:tty")[:4] == ["1", "5", "5", "daemon"]
    assert who(sandbox, user="4711")[:5] == ["4711", "4711", "4711", "4711", "/"]
    # Groups that name the user are the user's, from the files as they are now.
    said(sandbox.sh("echo team:x:90:user >> /etc/group", user="root"))
    assert who(sandbox)[:4] == ["1000", "1000", "1000", "90"]


def test_a_name_that_nobody_has_is_a_failed_start(limited):
    session = limited().session("/bin/true", user="stranger")
    failed = session.wait_phase("failed")
    assert "stranger" in failed["attempt"]["message"], failed
    with pytest.raises(Failure) as refused:
        session.sandbox.session("/bin/true", user="not a user")
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")

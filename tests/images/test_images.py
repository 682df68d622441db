"""Images, from the archive to a session that runs in them."""

import base64
import gzip
import io
import subprocess
import tarfile

import pytest
from outlive_testing.api import Failure, Sandbox, output
from outlive_testing.server import Server, wait_until

from boxes import Box
from making import Image, Registry, base, digest, file, link, tar, upper


def run(sandbox, line: str, **spec) -> str:
    """What a shell line prints; it must succeed."""
    session = sandbox.sh(line, **spec)
    ended = session.wait_exit()
    printed = output(session.events()).decode()
    assert ended["exit_code"] == 0, (ended, printed)
    return printed


def test_a_session_runs_in_an_imported_root_file_system(box):
    packed = {"plain.tar": base(), "packed.tar.gz": gzip.compress(base(), 1)}
    path = box.server.data / "packed.tar.zst"
    path.write_bytes(subprocess.run(["zstd", "-c"], input=base(), capture_output=True,
                                    check=True).stdout)
    packed["packed.tar.zst"] = path.read_bytes()
    digests = set()
    for name, data in packed.items():
        path = box.server.data / name
        path.write_bytes(data)
        image = box.outlive("image", "import", path, "--name", "base:1")
        assert image["name"] == "base:1" and image["source"] == "rootfs", image
        digests.add(image["digest"])
    assert digests == {digest(base())}
    sandbox = box.sandbox("base:1")
    assert sandbox.get()["image"] == "base:1"
    assert run(sandbox, "cat /marker; ls /; id -u; cat /etc/hostname; stat -c %u /app") == (
        "base\napp\nbin\ndata\ndev\netc\nmarker\nproc\nroot\nrun\nsys\ntmp\n"
        f"0\n{sandbox.id}\n1001\n")
    # The image stays as it is; what the sandbox changes is its own, over a pause, too.
    run(sandbox, "echo changed > /marker; touch /tmp/x; rm /data/kept")
    sandbox.pause()
    sandbox.resume()
    assert run(sandbox, "cat /marker; ls /data") == "changed\nold\n"
    assert run(box.sandbox("base:1"), "cat /marker; ls /data") == "base\nkept\nold\n"


def test_a_layout_shows_what_its_layers_say_together(box, image, tmp_path):
    image.write_layout(tmp_path)
    made = box.outlive("image", "import", tmp_path, "--name", "app")
    assert made["name"] == "app:latest" and made["source"] == "oci" and made["layers"] == 2, made
    assert made["digest"] == digest(image.config)
    sandbox = box.sandbox("app", env_vars={"BOTH": "sandbox"})
    assert run(sandbox, "cat /marker /data/*; ls /data") == "upper\nkept\nnew\nkept\nnew\n"
    # User, directory and variables are the image's, below those of the sandbox.
    assert run(sandbox, "id -u; id -g; pwd; echo $FROM_IMAGE $BOTH") == (
        "1001\n1002\n/app\nyes sandbox\n")


def test_what_docker_saves_is_the_same_image(box, image, tmp_path):
    image.write_layout(tmp_path)
    layout = box.outlive("image", "import", tmp_path, "--name", "layout")
    for name, data in [("plain", image.docker_archive()),
                       ("packed", gzip.compress(image.docker_archive(), 1))]:
        saved = box.outlive("image", "import", "-", "--name", name, data=data)
        assert saved["source"] == "docker-archive" and saved["digest"] == layout["digest"], saved
    assert box.layers() == {digest(layer).removeprefix("sha256:") for layer in image.layers}
    assert run(box.sandbox("packed"), "cat /marker") == "upper\n"


@pytest.mark.parametrize("secured", [False, True])
def test_an_image_is_pulled_from_a_registry(box, image, secured):
    key = "Basic " + base64.b64encode(b"me:secret").decode()
    with Registry(image, key if secured else None) as registry:
        who = ["--user", "me", "--password", "secret"] if secured else []
        if secured:
            refused = box.outlive("image", "pull", registry.reference, fails=True)
            assert refused["error"]["code"] == "bad_request", refused
        made = box.outlive("image", "pull", registry.reference, *who)
        assert made["name"] == registry.reference and made["digest"] == digest(image.config), made
        assert run(box.sandbox(registry.reference), "cat /marker") == "upper\n"
        # Layers that are here are not asked for again.
        registry.asked.clear()
        box.outlive("image", "pull", registry.reference, "--name", "other:2", *who)
        asked = [path for path in registry.asked if "/blobs/" in path]
        assert asked == [f"/v2/team/app/blobs/{digest(image.config)}"]


def test_a_registry_that_lies_or_has_nothing_leaves_nothing(box, image):
    with Registry(image) as registry:
        for name, blob in registry.blobs.items():
            if blob != image.config:
                registry.blobs[name] = blob[:-1] + bytes([blob[-1] ^ 1])
        refused = box.outlive("image", "pull", registry.reference, fails=True)
        assert refused["error"]["code"] in ("bad_request", "unavailable"), refused
        nothing = f"{registry.address}/team/nothing:1"
        refused = box.outlive("image", "pull", nothing, fails=True)
        assert refused["error"]["code"] == "bad_request", refused
        assert "team/nothing" in refused["error"]["message"], refused
    assert box.layers() == set() and box.drafts() == []


def test_an_image_in_use_is_not_removed(box):
    box.outlive("image", "import", "-", "--name", "app", data=base())
    sandbox = box.sandbox("app")
    sandbox.pause()
    with pytest.raises(Failure) as refused:
        box.api.call("DELETE", "/v1/images/app")
    assert refused.value.status == 409 and refused.value.error["details"]["sandboxes"] == 1
    listed = {image["name"]: image for image in box.outlive("image", "list")["images"]}
    assert list(listed) == ["host", "app:latest"] and listed["app:latest"]["sandboxes"] == 1
    sandbox.delete()
    assert box.outlive("image", "rm", "app") == {"name": "app:latest", "deleted": True}
    assert box.layers() == set()


def test_an_image_that_a_snapshot_needs_is_not_removed(box):
    box.outlive("image", "import", "-", "--name", "app", data=base())
    sandbox = box.sandbox("app")
    run(sandbox, "echo changed > /marker; rm /data/kept")
    snapshot = box.outlive("sandbox", "snapshot", "create", sandbox.id, "--name", "kept")
    assert snapshot["image"] == "app:latest" and snapshot["files"] >= 1, snapshot
    sandbox.delete()
    refused = box.outlive("image", "rm", "app", fails=True)
    assert refused["error"]["details"] == {
        "reason": "image_in_use", "sandboxes": 0, "snapshots": 1}, refused
    # Another image of the name changes nothing for what is made of the snapshot.
    box.outlive("image", "import", "-", "--name", "app", data=tar([file("other", "x")]))
    made = box.outlive("sandbox", "create", "--snapshot-id", "kept")
    made = Sandbox(box.api, made["id"])
    assert made.get()["image"] == "app:latest"
    assert run(made, "cat /marker; ls /data") == "changed\nold\n"
    other = box.sandbox()
    with pytest.raises(Failure) as refused:
        box.api.call("POST", f"{other.path}/rootfs/restore", {"snapshot_id": snapshot["id"]})
    assert refused.value.status == 409
    assert refused.value.error["details"]["reason"] == "other_image"
    made.delete()
    box.outlive("sandbox", "snapshot", "delete", "kept")
    box.outlive("image", "rm", "app")
    assert box.layers() == set()


def test_a_killed_server_leaves_no_half_image(box):
    """Killed at many points of an import; the next server knows the image or has no trace."""
    data = tar([file(f"file-{number}", "x" * 100) for number in range(4000)])
    box.outlive("image", "import", "-", "--name", "kept", data=base())
    kept = box.layers()
    (box.server.data / "big.tar").write_bytes(data)
    for wanted in (1, 1000, 3000):
        script = [str(box.server.data / "big.tar"), "--name", "big"]
        command = subprocess.Popen(
            ["curl", "-s", "-X", "POST", "-H", f"Authorization: Bearer {box.server.token}",
             "--data-binary", f"@{script[0]}", f"{box.server.url}/v1/images?name=big"],
            stdout=subprocess.DEVNULL)

        def unpacked():
            drafts = (box.server.data / "images/tmp").glob("*/layer-0")
            found = sum(1 for draft in drafts for _ in draft.iterdir())
            return found >= wanted or box.layers() != kept
        wait_until(unpacked, 30, "the unpacking")
        box.server.kill()
        command.wait()
        box.server.start()
        names = [image["name"] for image in box.outlive("image", "list")["images"]]
        assert box.drafts() == []
        if "big:latest" in names:
            box.outlive("image", "rm", "big")
        assert box.layers() == kept
    assert run(box.sandbox("kept"), "cat /marker") == "base\n"


def test_only_admins_change_images_and_everybody_sees_them(box):
    member = type(box.api)(box.server, box.api.key("team"))
    for method, path, body in [("DELETE", "/v1/images/app", None),
                               ("POST", "/v1/images/pull", {"reference": "localhost:1/a"}),
                               ("POST", "/v1/images?name=a", {})]:
        with pytest.raises(Failure) as refused:
            member.call(method, path, body)
        assert refused.value.status == 403, path
    assert member.call("GET", "/v1/images")["images"][0]["name"] == "host"


def test_names_that_are_none_are_refused(box):
    for name in ["", "host", "host:1", "../x", "UPPER", "a b", "a@sha256:0"]:
        status, _, _ = box.api.raw("POST", "/v1/images?name=" + name.replace(" ", "%20"), b"x")
        assert status == 400, name
    with pytest.raises(Failure) as refused:
        box.sandbox("nothing")
    assert (refused.value.status, refused.value.code) == (404, "not_found")


def test_an_image_that_plants_a_link_does_not_reach_the_host(box, tmp_path):
    evil = tar([link("evil", str(tmp_path)), file("evil/file", "x")])
    refused = box.outlive("image", "import", "-", "--name", "evil", data=evil, fails=True)
    assert refused["error"]["details"]["reason"] == "hostile_archive", refused
    assert list(tmp_path.iterdir()) == [] and box.layers() == set() and box.drafts() == []


def test_an_image_whose_dev_is_a_link_does_not_start(box):
    """What is mounted over `/dev` must not land where a link leads."""
    box.outlive("image", "import", "-", "--name", "odd", data=tar([link("dev", "etc")]))
    with pytest.raises(Failure) as refused:
        box.sandbox("odd")
    assert "/dev" in refused.value.error["message"], refused.value


def test_a_template_says_what_a_sandbox_is_made_of(tmp_path):
    templates = tmp_path / "templates.yaml"
    templates.write_text(
        "templates:\n  small:\n    image: app\n    user: '0'\n"
        "    env: {FROM: template, BOTH: template}\n    resources: {pids: 64}\n")
    with Server(arguments=["--template-file", str(templates)]) as server:
        box = Box(server)
        for template, code in [("small", "template_not_ready"), ("none", "not_found")]:
            with pytest.raises(Failure) as refused:
                box.sandbox(template=template)
            assert refused.value.code == code
        box.outlive("image", "import", "-", "--name", "app", data=base())
        sandbox = box.sandbox(template="small", env_vars={"BOTH": "request"})
        shown = sandbox.get()
        assert (shown["image"], shown["template_id"]) == ("app:latest", "small")
        assert shown["resources"]["pids"] == 64
        assert run(sandbox, "cat /marker; echo $FROM $BOTH") == "base\ntemplate request\n"
        assert box.sandbox("host", template="small").get()["image"] == "host"
        made = box.outlive("sandbox", "create", "-t", "default", "--image", "app")
        assert box.outlive("sandbox", "get", made["sandbox_id"])["image"] == "app:latest"


def test_the_named_dialect_makes_sandboxes_from_images_and_templates(tmp_path):
    templates = tmp_path / "templates.yaml"
    templates.write_text("templates:\n  small:\n    image: app\n    env: {FROM: template}\n")
    with Server(arguments=["--template-file", str(templates)]) as server:
        box = Box(server)

        def made(**body) -> Sandbox:
            shown = box.api.bare("POST", "/v1/sandbox", body)["sandbox"]
            assert box.api.bare("GET", f"/v1/sandbox/{shown['id']}")["sandbox"]["image"] == shown["image"]
            return Sandbox(box.api, shown["id"])

        for body, status, code in [({"image": "app"}, 404, "not_found"),
                                   ({"template": "small"}, 409, "template_not_ready"),
                                   ({"template": "none"}, 404, "not_found"),
                                   ({"image": "no name"}, 400, "invalid_request")]:
            with pytest.raises(Failure) as refused:
                made(**body)
            assert (refused.value.status, refused.value.code) == (status, code), body
        box.outlive("image", "import", "-", "--name", "app", data=base())
        look = "cat /marker 2>&1; echo $FROM"
        assert run(made(image="app"), look) == "base\n\n"
        assert run(made(template="small"), look) == "base\ntemplate\n"
        # What the call says itself counts more; without a word it is the host.
        assert "No such file" in run(made(template="small", image="host"), look)
        assert made().get()["image"] == "host"
        # One that wakes after a pause is made of the same.
        sandbox = made(image="app")
        sandbox.pause()
        box.outlive("image", "import", "-", "--name", "app", data=tar([file("marker", "another")]))
        assert run(sandbox, look) == "base\n\n"


def test_a_process_runtime_knows_only_the_host():
    with Server(arguments=["--runtime", "process"]) as server:
        box = Box(server)
        box.outlive("image", "import", "-", "--name", "app", data=base())
        with pytest.raises(Failure) as refused:
            box.sandbox("app")
        assert refused.value.status == 400 and "process" in refused.value.error["message"]
        assert box.sandbox("host").get()["image"] == "host"


def test_files_keep_owners_and_setuid_inside_and_mean_nothing_outside(box):
    """A program that is setuid root in the image is so inside; on the host nobody reaches it."""
    data = base()
    out = io.BytesIO(data)
    with tarfile.open(fileobj=out, mode="a") as archive:
        info, body = file("bin/special", "x", 0o4755)
        archive.addfile(info, io.BytesIO(body))
    box.outlive("image", "import", "-", "--name", "suid", data=out.getvalue())
    assert run(box.sandbox("suid"), "stat -c '%a %u' /bin/special") == "4755 0\n"
    assert (box.server.data / "images").stat().st_mode & 0o777 == 0o700


def test_one_layer_of_the_host_serves_all_sandboxes(box):
    """A sandbox copies nothing: its own layer holds the few files that name it."""
    boxes = [box.sandbox() for _ in range(3)]
    shared = [path for path in (box.server.data / "images").iterdir() if path.name[:5] == "host-"]
    assert len(shared) == 1
    for sandbox in boxes:
        own = box.server.data / "sandboxes" / sandbox.id / "own"
        names = {str(path.relative_to(own)) for path in own.rglob("*")}
        assert names - {"etc/resolv.conf"} == {"etc", "etc/hostname", "etc/hosts", "etc/machine-id"}
        assert run(sandbox, "cat /etc/hostname") == f"{sandbox.id}\n"
    # A version that nobody uses goes once there is another.
    old = box.server.data / "images/host-0123"
    old.mkdir()
    box.server.restart()
    assert run(boxes[0], "cat /etc/hostname") == f"{boxes[0].id}\n"
    box.sandbox()
    wait_until(lambda: not old.exists(), 10, "the removal of an old version")
    assert shared[0].exists()

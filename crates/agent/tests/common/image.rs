//! The layer that a server generates for the image `host`, as small as the stories need it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use outlive_api::launch::RuntimeKind;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";

/// Makes the layer below `directory`, and tells where; only namespaces show one.
pub fn host(kind: RuntimeKind, directory: &Path) -> String {
    if kind != RuntimeKind::Namespace {
        return String::new();
    }
    let layer = directory.join("layer");
    for dir in [
        "etc",
        "home/user",
        "mnt",
        "root",
        "srv",
        "tmp",
        "usr",
        "var/log",
    ] {
        fs::create_dir_all(layer.join(dir)).unwrap();
    }
    fs::set_permissions(layer.join("tmp"), Permissions::from_mode(0o1777)).unwrap();
    for name in ["bin", "sbin", "lib", "lib64"] {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            symlink(target, layer.join(name)).unwrap();
        }
    }
    fs::write(layer.join("etc/passwd"), PASSWD).unwrap();
    fs::write(layer.join("etc/shadow"), "root:*:19000:0:99999:7:::\n").unwrap();
    layer.to_str().unwrap().to_owned()
}

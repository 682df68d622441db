//! Namespaces, and what is set up in new ones: mounts, the root, the loopback device.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
};

use super::check;

/// Moves the calling thread (or its future children) into namespaces.
pub fn setns(fd: impl AsFd, kinds: libc::c_int) -> io::Result<()> {
    // SAFETY: setns reads no memory of ours.
    check(unsafe { libc::syscall(libc::SYS_setns, fd.as_fd().as_raw_fd(), kinds) })?;
    Ok(())
}

/// Gives the calling process, which has one thread, namespaces of its own.
pub fn unshare(kinds: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory involved; nothing in this program counts on the old namespaces.
    check(unsafe { libc::syscall(libc::SYS_unshare, kinds) })?;
    Ok(())
}

/// Shows a detached mount through the ids of a user namespace.
pub fn idmap_mount(mount: BorrowedFd<'_>, userns: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::from(userns.as_raw_fd().cast_unsigned()),
    };
    mount_setattr(mount, &attr, libc::AT_EMPTY_PATH)
}

/// Makes a mount, and those below it, read-only.
pub fn mount_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    mount_setattr(mount, &attr, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE)
}

fn mount_setattr(
    mount: BorrowedFd<'_>,
    attr: &libc::mount_attr,
    flags: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the path is a C string and `attr` a mount_attr of the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(attr),
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Makes the current directory the root; the old root is then mounted over it.
pub fn pivot_root_here() -> io::Result<()> {
    // SAFETY: both paths are C strings.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) })?;
    Ok(())
}

/// Starts the loopback device of our network namespace.
pub fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: ifreq is plain data for which all-zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = i16::try_from(flags).map_err(io::Error::other)?;
    // SAFETY: the request is an ifreq with its name and flags set, as SIOCSIFFLAGS wants.
    check(libc::c_long::from(unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            ptr::from_ref(&request),
        )
    }))?;
    Ok(())
}

//! The floors: what the same work costs on this machine without us.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::host::{beside, pause};

mod sqlite;

pub(crate) use sqlite::Sqlite;

/// Time and CPU of some work.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    /// Wall time, seconds.
    pub(crate) wall: f64,
    /// CPU, seconds.
    pub(crate) cpu: f64,
}

/// A program with its words, nothing connected.
pub(crate) fn program(path: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(path)
}

/// `bench-child write SIZE BYTES | cat > file`, `count` of them at once; the CPU is `cat`'s.
pub(crate) fn cat_into_files(scratch: &Path, count: u64, size: u64, bytes: u64) -> Result<Cost> {
    let begun = Instant::now();
    let mut pairs = Vec::new();
    for at in 0..count {
        let mut writer = program(beside("bench-child")?)
            .args(["write", &size.to_string(), &bytes.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let source = writer.stdout.take().context("no stdout")?;
        let file = File::create(scratch.join(format!("cat-{at}")))?;
        let cat = program("cat").stdin(source).stdout(file).spawn()?;
        pairs.push((writer, cat));
    }
    let mut cost = Cost::default();
    for (mut writer, mut cat) in pairs {
        cost.cpu += cpu_at_end(&mut cat)?;
        writer.wait()?;
    }
    cost.wall = begun.elapsed().as_secs_f64();
    for at in 0..count {
        fs::remove_file(scratch.join(format!("cat-{at}")))?;
    }
    Ok(cost)
}

/// Waits for a child and answers the CPU that it used, seconds.
pub(crate) fn cpu_at_end(child: &mut Child) -> Result<f64> {
    let pid = Pid::from_child(child);
    waitid(
        WaitId::Pid(pid),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
    )?;
    let used = cpu_of(child.id())?;
    ensure!(child.wait()?.success(), "a floor's program failed");
    Ok(used)
}

/// CPU that a process used so far, seconds.
pub(crate) fn cpu_of(pid: u32) -> Result<f64> {
    // The scheduler's own account has nanoseconds, for each thread; a zombie has only ticks.
    let mut nanos = 0_u64;
    if let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) {
        for task in tasks {
            let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            nanos += text
                .split(' ')
                .next()
                .and_then(|word| word.parse().ok())
                .unwrap_or(0_u64);
        }
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit(')').next().unwrap_or("");
    let ticks: f64 = after_name
        .split(' ')
        .skip(12)
        .take(2)
        .filter_map(|word| word.parse::<f64>().ok())
        .sum();
    Ok((Duration::from_nanos(nanos).as_secs_f64()).max(ticks / 100.0))
}

/// Median time of appending 64 bytes and `fdatasync`, seconds.
pub(crate) fn fdatasync_time(scratch: &Path) -> Result<f64> {
    let path = scratch.join("fdatasync");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let mut times = Vec::new();
    for _ in 0..31 {
        let begun = Instant::now();
        file.write_all(&[b'x'; 64])?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64());
    }
    fs::remove_file(path)?;
    Ok(crate::report::median(times))
}

/// A pseudo terminal: its master and the path of its other end.
pub(crate) fn terminal() -> Result<(OwnedFd, PathBuf)> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    Ok((master, PathBuf::from(name.to_str()?)))
}

/// Opens the other end of a terminal in raw or in its first mode.
pub(crate) fn terminal_end(path: &Path, raw: bool) -> Result<File> {
    let end = OpenOptions::new().read(true).write(true).open(path)?;
    if raw {
        let mut modes = rustix::termios::tcgetattr(end.as_fd())?;
        modes.make_raw();
        rustix::termios::tcsetattr(end.as_fd(), rustix::termios::OptionalActions::Now, &modes)?;
    }
    Ok(end)
}

/// Time to drain `bytes` that a child writes to a terminal, into `sink` if there is one.
pub(crate) fn drain_terminal(bytes: u64, mut sink: Option<File>) -> Result<f64> {
    let (master, path) = terminal()?;
    let end = terminal_end(&path, false)?;
    let begun = Instant::now();
    let mut child = program(beside("bench-child")?)
        .args(["write", "4096", &bytes.to_string()])
        .stdout(end)
        .spawn()?;
    let mut master = File::from(master);
    let mut buffer = vec![0; 64 * 1024];
    // The terminal answers EIO once its last other end is closed.
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        if let Some(sink) = &mut sink {
            sink.write_all(buffer.get(..count).unwrap_or_default())?;
        }
    }
    child.wait()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// nginx that serves the files of a directory on a port of its own; ended when dropped.
pub(crate) struct Nginx {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Nginx {
    /// Starts it.
    pub(crate) fn serve(directory: &Path) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let root = directory.display();
        let config = format!(
            "daemon off; worker_processes 1; pid {root}/nginx.pid; error_log {root}/nginx.log; user root;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; sendfile on; client_body_temp_path {root}; proxy_temp_path {root};\n\
             fastcgi_temp_path {root}; uwsgi_temp_path {root}; scgi_temp_path {root};\n\
             server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
        );
        let path = directory.join("nginx.conf");
        fs::write(&path, config)?;
        let child = program("nginx")
            .arg("-c")
            .arg(&path)
            .stderr(Stdio::null())
            .spawn()
            .context("nginx is needed for this row: apt-get install nginx-light")?;
        let address = format!("127.0.0.1:{port}");
        let begun = Instant::now();
        while std::net::TcpStream::connect(&address).is_err() {
            ensure!(
                begun.elapsed() < Duration::from_secs(10),
                "nginx did not get ready"
            );
            pause(Duration::from_millis(2));
        }
        Ok(Self { child, address })
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // TERM ends the master and its worker; a KILL would leave the worker behind.
        let pid = Pid::from_child(&self.child);
        if rustix::process::kill_process(pid, rustix::process::Signal::TERM).is_ok() {
            drop(self.child.wait());
        }
    }
}

//! Arguments of `image`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

/// What an archive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ImageFormat {
    /// Told by what is in it.
    #[default]
    Auto,
    /// A root file system.
    Rootfs,
    /// An OCI image layout.
    Oci,
    /// What `docker save` writes.
    DockerArchive,
}

impl ImageFormat {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rootfs => "rootfs",
            Self::Oci => "oci",
            Self::DockerArchive => "docker-archive",
        }
    }
}

/// The commands of `image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Take an image in from a file: a tar of a root file system, an OCI layout, or what
    /// `docker save` writes; plain, gzip or zstd.
    ///
    /// A folder is sent as a tar: one with a file `oci-layout` as that layout, any other as a
    /// root file system.
    #[command(
        after_help = "Example:\n  outlive image import rootfs.tar.zst --name debian:13\n  \
                      outlive image import ./layout --name app:1.2\n  \
                      docker save app:1.2 | outlive image import - --name app:1.2"
    )]
    Import {
        /// The archive, a folder, or `-` for standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Its name here, as in `name:tag` [default: the file's name].
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// What the archive holds.
        #[arg(long, value_enum, default_value = "auto")]
        format: ImageFormat,
    },
    /// Take an image in from a registry.
    ///
    /// The key for the registry comes from --user and the variable `OUTLIVE_REGISTRY_PASSWORD`, or
    /// from the file in which docker keeps it (`auths` of `~/.docker/config.json`).
    #[command(
        after_help = "Example:\n  outlive image pull docker.io/library/busybox:1.37\n  \
                      outlive image pull 127.0.0.1:5000/team/app:3 --name app:3"
    )]
    Pull {
        /// As in `registry/repository:tag`.
        reference: String,
        /// Its name here [default: the reference].
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Speak HTTP without TLS; on loopback that needs no flag.
        #[arg(long)]
        insecure: bool,
        /// Who asks the registry.
        #[arg(long, value_name = "NAME", requires = "password")]
        user: Option<String>,
        /// Their password. Prefer the variable: other users can see your command lines.
        #[arg(
            long,
            env = "OUTLIVE_REGISTRY_PASSWORD",
            hide_env_values = true,
            value_name = "PASSWORD"
        )]
        password: Option<String>,
    },
    /// List the images, and how many sandboxes use each.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  outlive image list --json"
    )]
    List,
    /// Remove an image that no sandbox uses.
    #[command(
        visible_alias = "remove",
        after_help = "Example:\n  outlive image rm app:1.2"
    )]
    Rm {
        /// Its name.
        name: String,
    },
}

//! Interpreters: how one is started, and how it is given a chunk of code.
//!
//! Those that are known by their alias are started with a small program in their own language
//! that reads frames from standard input, carries chunks out in one lasting namespace, and says
//! where each begins and ends. What stands on standard input besides frames is a typed line when
//! the interpreter waits, and input of the code when it runs.

use outlive_api::error::ApiError;

/// Longest line of a frame, bytes: a terminal in canonical mode takes no more than 4095 at once.
const LINE_BYTES_MAX: usize = 1000;

const PYTHON: &str = include_str!("drivers/python.py");
const NODE: &str = include_str!("drivers/node.js");

/// What every launcher begins with: copies of the streams that no chunk redirects, and a
/// terminal that does not echo frames.
const PROLOGUE: &str = "exec 8>&1 9>&2; [ -t 0 ] && stty -echo 2>/dev/null; ";

/// What a shell does before each prompt: ends the chunk that was open, and says that it waits.
const SHELL_HOOK: &str = r#"__ol_s=$?; if [ -n "$__ol_n" ]; then printf "\033]7717;end;%s;%s\007" "$__ol_n" "$__ol_s" >&8; [ -t 0 ] || printf "\033]7717;end;%s;%s\007" "$__ol_n" "$__ol_s" >&9; __ol_n=; fi; printf "\033]7717;ready\007" >&8; (exit $__ol_s)"#;

/// An interpreter that says by itself where a chunk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interpreter {
    /// `python3` or `python`.
    Python,
    /// `node`.
    Node,
    /// `bash`.
    Bash,
    /// `sh`, whichever it is.
    Sh,
}

impl Interpreter {
    /// The one that an alias means.
    pub(super) fn of(alias: &str) -> Option<Self> {
        Some(match alias {
            "python" | "python3" => Self::Python,
            "node" | "nodejs" | "javascript" | "js" => Self::Node,
            "bash" => Self::Bash,
            "sh" | "shell" => Self::Sh,
            _ => return None,
        })
    }

    /// The aliases, for people.
    pub(super) const ALIASES: &'static str = "python, node, bash, sh";

    /// The command that starts it.
    pub(super) fn command(self) -> Vec<String> {
        let launched = |programs: &[&str], flags: &str, driver: &str| {
            let mut script = PROLOGUE.to_owned();
            for program in programs {
                let found = format!(
                    "command -v {program} >/dev/null 2>&1 && exec {program} {flags} \"$1\"; "
                );
                script.push_str(&found);
            }
            script += &missing(programs);
            vec![script, "sh".to_owned(), driver.to_owned()]
        };
        let mut command = vec!["sh".to_owned(), "-c".to_owned()];
        command.extend(match self {
            Self::Python => launched(&["python3", "python"], "-u -c", PYTHON),
            Self::Node => launched(&["node", "nodejs"], "-e", NODE),
            Self::Bash => vec![format!(
                "{PROLOGUE}command -v bash >/dev/null 2>&1 || {{ {} }}; \
                 export PROMPT_COMMAND='{SHELL_HOOK}' PS1= PS2=; \
                 exec bash --noprofile --norc --noediting -i",
                missing(&["bash"])
            )],
            Self::Sh => vec![format!(
                "{PROLOGUE}export PS1='$({SHELL_HOOK})' PS2=; exec sh -i"
            )],
        });
        command
    }

    /// What to write for a chunk.
    pub(super) fn frame(self, nonce: &str, chunk: &str) -> Result<Vec<u8>, ApiError> {
        match self {
            Self::Python | Self::Node => Ok(base64_frame(nonce, chunk)),
            Self::Bash | Self::Sh => shell_frame(nonce, chunk),
        }
    }
}

/// The command for an interpreter that is known by its program only.
pub(super) fn foreign(candidates: &[(&str, &[String])]) -> Vec<String> {
    let mut script = "[ -t 0 ] && stty -echo 2>/dev/null; ".to_owned();
    for (program, arguments) in candidates {
        let program = quoted(program);
        let arguments: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
        let found = format!(
            "command -v {program} >/dev/null 2>&1 && exec {program} {}; ",
            arguments.join(" ")
        );
        script.push_str(&found);
    }
    let programs: Vec<&str> = candidates.iter().map(|(program, _)| *program).collect();
    script += &missing(&programs);
    vec!["sh".to_owned(), "-c".to_owned(), script]
}

fn missing(programs: &[&str]) -> String {
    let words = format!("the sandbox has no {}", programs.join(" or "));
    format!("echo {} >&2; exit 127;", quoted(&words))
}

/// As one word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn base64_frame(nonce: &str, chunk: &str) -> Vec<u8> {
    let text = base64_simd::STANDARD.encode_to_string(chunk);
    let mut out = Vec::with_capacity(text.len() + text.len() / LINE_BYTES_MAX * 3 + 64);
    let mut rest = text.as_str();
    while rest.len() > LINE_BYTES_MAX {
        let (line, after) = rest.split_at(LINE_BYTES_MAX);
        out.extend_from_slice(b"\x1e+");
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
        rest = after;
    }
    out.extend_from_slice(format!("\x1e!{nonce} {rest}\n").as_bytes());
    out
}

/// A shell reads commands, so a frame is made of them: assignments that gather the chunk with
/// everything unusual as `\0ooo`, and one that carries it out where the shell's own level is.
fn shell_frame(nonce: &str, chunk: &str) -> Result<Vec<u8>, ApiError> {
    if chunk.contains('\0') {
        return Err(ApiError::invalid("a shell takes no NUL in its code"));
    }
    let mut out = String::from("__ol_c=\n");
    let mut line = String::new();
    let flush = |line: &mut String, out: &mut String| {
        if !line.is_empty() {
            out.extend(["__ol_c=$__ol_c'", line.as_str(), "'\n"]);
            line.clear();
        }
    };
    for byte in chunk.bytes() {
        if byte.is_ascii_alphanumeric() {
            line.push(char::from(byte));
        } else {
            let octal = format!("\\0{byte:03o}");
            line.push_str(&octal);
        }
        if line.len() > LINE_BYTES_MAX {
            flush(&mut line, &mut out);
        }
    }
    flush(&mut line, &mut out);
    let last = format!(
        "__ol_n={nonce}; printf '\\033]7717;begin;{nonce}\\007' >&8; \
         [ -t 0 ] || printf '\\033]7717;begin;{nonce}\\007' >&9; \
         eval \"$(printf '%b' \"$__ol_c\")\"\n"
    );
    out.push_str(&last);
    Ok(out.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_a_frame_is_too_long_for_a_terminal() {
        let chunk = "é\n".repeat(5000);
        for interpreter in [Interpreter::Python, Interpreter::Bash] {
            let frame = interpreter.frame("n1", &chunk).unwrap();
            let longest = frame.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
            assert!(longest.unwrap() < 1200, "{interpreter:?}");
        }
        Interpreter::Sh.frame("n1", "a\0b").unwrap_err();
    }

    #[test]
    fn programs_and_arguments_are_words() {
        let command = foreign(&[("it's", &["a b".to_owned(), "$(x)".to_owned()])]);
        assert!(
            command[2].contains(r"exec 'it'\''s' 'a b' '$(x)'; "),
            "{}",
            command[2]
        );
    }
}

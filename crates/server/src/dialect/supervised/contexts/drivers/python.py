# Keeps a Python namespace, and says where each chunk of code begins and ends.
#
# Lines come on standard input. `\x1e+DATA` and `\x1e!NONCE DATA` bring a chunk in base64; every
# other line is typed by somebody and treated as at a prompt. What is said goes to copies of the
# standard streams made at the start, so that a chunk that redirects its own can't swallow it.


def _outlive():
    import ast
    import base64
    import codeop
    import linecache
    import os
    import sys
    import traceback
    import types

    terminal = os.isatty(0)
    says = [os.dup(1)] if terminal else [os.dup(1), os.dup(2)]
    if terminal:
        try:
            import termios

            mode = termios.tcgetattr(0)
            mode[3] &= ~termios.ECHO
            termios.tcsetattr(0, termios.TCSANOW, mode)
        except (ImportError, OSError):
            pass  # The echo is outside of what a chunk wrote.

    def say(text, everywhere=True):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass  # A chunk may put anything in their place.
        for descriptor in says if everywhere else says[:1]:
            os.write(descriptor, ("\x1b]7717;%s\x07" % text).encode())

    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [""]
    space = main.__dict__
    chunks = 0

    def report(name):
        kind, error, trace = sys.exc_info()
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        traceback.print_exception(kind, error, trace)

    def carry_out(source):
        nonlocal chunks
        chunks += 1
        name = "<chunk %d>" % chunks
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        try:
            tree = ast.parse(source, name)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, name, "exec"), space)
            if last is not None:
                sys.displayhook(eval(compile(last, name, "eval"), space))
        except SystemExit:
            raise
        except BaseException:
            report(name)
            return 1
        return 0

    compiler = codeop.CommandCompiler()

    def typed(lines):
        """Whether more lines are needed."""
        try:
            code = compiler("\n".join(lines), "<input>", "single")
            if code is None:
                return True
            exec(code, space)
        except SystemExit:
            raise
        except BaseException:
            report("<input>")
        return False

    parts, lines, open_chunk = [], [], None
    say("ready", False)
    while True:
        try:
            line = sys.__stdin__.readline()
            if not line:
                return
            line = line.rstrip("\r\n")
            if line.startswith("\x1e+"):
                parts.append(line[2:])
                continue
            if line.startswith("\x1e!"):
                nonce, _, data = line[2:].partition(" ")
                source = base64.b64decode("".join(parts) + data).decode("utf-8", "surrogateescape")
                parts.clear()
                open_chunk = nonce
                say("begin;" + nonce)
                status = carry_out(source)
                open_chunk = None
                say("end;%s;%d" % (nonce, status))
            else:
                lines.append(line)
                if not typed(lines):
                    lines.clear()
        except KeyboardInterrupt:
            # It came between the chunk's code and ours.
            if open_chunk is not None:
                say("end;%s;130" % open_chunk)
                open_chunk = None
            parts.clear()
            lines.clear()
        say("ready", False)


_outlive()

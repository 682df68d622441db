// Keeps a JavaScript context, and says where each chunk of code begins and ends.
//
// Lines come on standard input. `\x1e+DATA` and `\x1e!NONCE DATA` bring a chunk in base64; every
// other line is typed by somebody and treated as at a prompt.
'use strict';
(() => {
  const { PassThrough, Writable } = require('stream');
  const repl = require('repl');
  const tty = require('tty');
  const util = require('util');

  const terminal = tty.isatty(0);
  const say = (text, everywhere = true) => {
    const mark = `\x1b]7717;${text}\x07`;
    process.stdout.write(mark);
    if (everywhere && !terminal) process.stderr.write(mark);
  };
  const quiet = new Writable({ write: (_chunk, _encoding, done) => done() });
  const server = repl.start({
    prompt: '', input: new PassThrough(), output: quiet, terminal: false, useGlobal: true,
    breakEvalOnSigint: true,
  });
  // An await that is interrupted ends its chunk; code that does not yield is stopped by the module
  // itself, which a listener would keep from it.
  const interrupt = () => failed && server.emit('SIGINT');
  // The module gives an error to its callback or to its domain, as it likes.
  let failed = null;
  const failure = (error) => (failed ? failed({ error }) : show({ error }));
  if (server._domain) {
    server._domain.removeAllListeners('error');
    server._domain.on('error', failure);
  }
  process.on('uncaughtException', failure);
  const evaluate = async (source, name) => {
    // While the input is paused, nothing else keeps the process.
    const awake = setInterval(() => {}, 0x7fffffff);
    const result = await new Promise((resolve) => {
      failed = resolve;
      process.off('SIGINT', interrupt);
      server.eval(source, server.context, name, (error, value) => resolve({ error, value }));
      process.on('SIGINT', interrupt);
    });
    failed = null;
    clearInterval(awake);
    return result;
  };
  const show = ({ error, value }) => {
    if (error !== null && error !== undefined) {
      const real = error instanceof repl.Recoverable ? error.err : error;
      const text = real instanceof Error && real.stack ? real.stack : util.inspect(real);
      const ours = text.indexOf('\n    at ContextifyScript.');
      process.stderr.write(`Uncaught ${ours < 0 ? text : text.slice(0, ours)}\n`);
      return 1;
    }
    if (value !== undefined) process.stdout.write(`${util.inspect(value)}\n`);
    return 0;
  };

  let parts = [];
  let typed = '';
  let chunks = 0;
  const take = async (line) => {
    if (line.startsWith('\x1e+')) {
      parts.push(line.slice(2));
      return;
    }
    if (line.startsWith('\x1e!')) {
      const space = line.indexOf(' ');
      const nonce = line.slice(2, space);
      const source = Buffer.from(parts.join('') + line.slice(space + 1), 'base64').toString();
      parts = [];
      say(`begin;${nonce}`);
      chunks += 1;
      const status = show(await evaluate(source, `chunk ${chunks}`));
      say(`end;${nonce};${status}`);
    } else {
      typed += `${line}\n`;
      const result = await evaluate(typed, 'input');
      if (!(result.error instanceof repl.Recoverable)) {
        typed = '';
        show(result);
      }
    }
    say('ready', false);
  };

  let pending = '';
  let ended = false;
  let busy = false;
  const work = async () => {
    if (busy) return;
    busy = true;
    // What comes meanwhile belongs to the code that runs.
    process.stdin.pause();
    for (let at = pending.indexOf('\n'); at >= 0; at = pending.indexOf('\n')) {
      const line = pending.slice(0, at).replace(/\r$/, '');
      pending = pending.slice(at + 1);
      await take(line);
    }
    busy = false;
    if (ended) process.exit();
    process.stdin.resume();
  };
  process.stdin.setEncoding('utf8');
  process.stdin.on('data', (text) => {
    pending += text;
    work();
  });
  process.stdin.on('end', () => {
    ended = true;
    work();
  });
  process.on('SIGINT', interrupt);
  say('ready', false);
})();

"""The child that writes numbered lines, and the check of what arrived of them."""

from __future__ import annotations

import hashlib

EXIT_CODE = 7
_PAD = b"x" * 111
_BLOCK_LINES = 512

# Perl is on every Debian. USR1 makes it finish its block, say how many lines there were, and exit.
WRITER = r"""
my ($rate) = @ARGV;
my ($n, $stop, $since, $pad) = (0, 0, 0, 'x' x 111);
$SIG{USR1} = sub { $stop = 1 };
sub put {
    my ($block, $at) = (shift, 0);
    while ($at < length $block) {
        my $wrote = syswrite(STDOUT, $block, length($block) - $at, $at);
        if (defined $wrote) { $at += $wrote } elsif ($! != 4) { exit 99 }
    }
}
while (!$stop) {
    my $block = '';
    $block .= sprintf("%015d %s\n", $n++, $pad) for 1 .. 512;
    put($block);
    $since += length $block;
    if ($rate && $since >= $rate / 100) { select(undef, undef, undef, 0.01); $since = 0 }
}
put("END $n\n");
exit 7;
"""


def command(bytes_per_second: int) -> list[str]:
    """The writer's argument list; 0 is as fast as it can."""
    return ["/usr/bin/perl", "-e", WRITER, str(bytes_per_second)]


class Check:
    """Compares what arrives with what the child wrote, byte by byte, in bounded memory."""

    def __init__(self, newline: bytes):
        self._newline = newline
        self._expected = b""
        self._next_line = 0
        self._held = b""
        self.bytes = 0
        self.digest = hashlib.sha256()

    def feed(self, data: bytes) -> None:
        self.digest.update(data)
        self._held += data
        # The last line names the count; it is judged when the whole is there.
        usable = len(self._held) - 64
        if usable <= 0:
            return
        self._compare(self._held[:usable])
        self._held = self._held[usable:]

    def finish(self) -> None:
        """Judges the tail: whole lines, then `END count`."""
        head, mark, tail = self._held.rpartition(b"END ")
        assert mark, f"the last line is missing; the journal ends with {self._held!r}"
        self._compare(head)
        count = int(tail)
        written = self._next_line - self._expected.count(b"\n")
        assert count == written, f"the child wrote {count} lines, {written} arrived"

    def _compare(self, data: bytes) -> None:
        while len(self._expected) < len(data):
            self._expected += self._block()
        if self._expected[:len(data)] != data:
            at = next(i for i, byte in enumerate(data) if byte != self._expected[i])
            raise AssertionError(
                f"byte {self.bytes + at} differs: expected {self._expected[at:at + 160]!r}, "
                f"got {data[at:at + 160]!r}")
        self._expected = self._expected[len(data):]
        self.bytes += len(data)

    def _block(self) -> bytes:
        first = self._next_line
        self._next_line += _BLOCK_LINES
        return b"".join(b"%015d %s%s" % (number, _PAD, self._newline)
                        for number in range(first, first + _BLOCK_LINES))

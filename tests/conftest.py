"""What all tests need."""

from __future__ import annotations

import signal

# Jobs in the background of a shell ignore Ctrl-C, and so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

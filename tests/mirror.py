"""A web server that serves bytes, and does so badly where it is asked to."""

import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@dataclass
class Mirror:
    """Serves files by name; ``asked`` is what was asked for: (name, first byte or None)."""

    files: dict[str, bytes]
    resumes: bool = True  # knows Range
    cut: list[int] = field(default_factory=list)  # bytes after which connections break
    status: int = 0  # answers with this error instead
    shift: int = 0  # bytes that a resumed answer is off
    length: bool = True  # says how much it is going to send
    stalls: bool = False  # says nothing more after its headers
    asked: list = field(default_factory=list)
    url: str = ""
    over: Event = field(default_factory=Event)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.strip("/")
        match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        self.asked.append((name, int(match[1]) if match else None))
        if self.status or name not in self.files:
            return request.send_error(self.status or 404)
        start = int(match[1]) + self.shift if match and self.resumes else None
        content = self.files[name]
        if start is not None and start >= len(content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(content)}")
            return request.end_headers()
        request.send_response(200 if start is None else 206)
        if start is not None:
            end = len(content) - 1
            request.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        content = content[start or 0 :]
        if self.length:
            request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if self.stalls:
            self.over.wait(10)
        request.wfile.write(content[: self.cut.pop(0)] if self.cut else content)


@contextmanager
def serve(mirror: Mirror):
    """Fill in the address; the server ends with the block."""

    class Handler(BaseHTTPRequestHandler):  # HTTP/1.0: the connection ends with the answer
        def do_GET(self):
            try:
                mirror.answer(self)
            except ConnectionError:
                pass  # the client has gone

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        mirror.url = f"http://127.0.0.1:{server.server_port}/"
        try:
            yield mirror
        finally:
            mirror.over.set()
            server.shutdown()
            thread.join()

"""``incseg serve``: a web page where one drops an image and sees what each step of a model predicts."""

import ipaddress
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from incseg.console import Console
from incseg.deploy import rest
from incseg.deploy.served_page import STYLE, build_app
from incseg.deploy.viewer import LiveViewer, ModelViewer
from incseg.deploy.visitors import UploadLimit, Visitors
from incseg.errors import InputError

LARGEST_FILE = "20mb"


def serve(models: Sequence[Path], host: str, port: int | None, device: str = "auto", *, block: bool = True) -> Any:
    """Open the page at ``host`` and ``port`` (the first free one from 7860 if None); returns gradio's app."""
    viewer, visitors = ModelViewer.load(models, device), Visitors()
    live = LiveViewer(viewer, Console().say)  # one for the page and for programs, so that a new model is loaded once
    app = build_app(live, visitors).queue(max_size=visitors.waiting)
    app.visitors = visitors
    import gradio  # noqa: PLC0415 - an extra
    from starlette.middleware import Middleware  # noqa: PLC0415 - comes with gradio

    theme = gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        app.launch(
            server_name=host,
            server_port=port,
            max_file_size=LARGEST_FILE,
            app_kwargs={"middleware": [Middleware(UploadLimit, visitors=visitors)]},
            theme=theme,
            css=STYLE,
            footer_links=[],
            share=False,
            enable_monitoring=False,
            ssr_mode=False,
            quiet=True,
            prevent_thread_lock=True,
        )
    except (OSError, OverflowError) as error:
        raise InputError(f"the page cannot be opened at {host}, port {port or '7860 to 7959'}: {error}") from None
    rest.mount(app.app, live.now, visitors)
    for name in viewer.repeated:
        Console().say(f"{name} equals a model named before it and is shown once.")
    Console().say(f"open {app.local_url} in a browser; stop with Ctrl+C.{_warning(host)}")
    if block:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind
        try:
            app.block_thread()
        finally:
            visitors.close()
    return app


def _warning(host: str) -> str:
    try:
        private = ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = host == "localhost"
    return "" if private else f" Everyone who can reach this machine at {host} can use it: there is no password."

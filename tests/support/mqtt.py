"""A broker for tests: Mosquitto where it is on the path, else amqtt. `KIND` says which it is."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

MOSQUITTO = shutil.which("mosquitto", path=os.environ["PATH"] + os.pathsep + "/usr/sbin")
KIND = "amqtt" if MOSQUITTO is None else "Mosquitto"
USER, PASSWORD = "frigate", "not-a-secret"


class MqttBroker:
    """A broker on a port of its own, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._words = self._mosquitto() if MOSQUITTO is not None else self._amqtt()

    def url(self, topic: str, client: str) -> str:
        return f"mqtt://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{topic}?client={client}"

    def start(self) -> None:
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log, cwd=self._folder)
        while True:
            assert self._process.poll() is None, (self._folder / "broker.log").read_text()
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
            self._process = None

    def _mosquitto(self) -> list[str]:
        passwords = self._folder / "passwords"
        config = self._folder / "mosquitto.conf"
        tool = str(Path(str(MOSQUITTO)).with_name("mosquitto_passwd"))
        subprocess.run([shutil.which("mosquitto_passwd") or tool, "-b", "-c", passwords, USER, PASSWORD], check=True)
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\n"
            f"persistence true\npersistence_location {self._folder}/\nmax_queued_messages 0\n"
            f"user {getpass.getuser()}\n"  # started by root, it would become a user who may not read the folder
        )
        return [str(MOSQUITTO), "-c", str(config)]

    def _amqtt(self) -> list[str]:
        config = self._folder / "amqtt.yaml"
        config.write_text(
            f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{self.port}\nplugins:\n"
            "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: false\n"
        )
        return [sys.executable, "-c", "from amqtt.scripts.broker_script import main; main()", "-c", str(config)]

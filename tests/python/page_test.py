# SPDX-License-Identifier: Apache-2.0
"""The page of a server in headless Chromium: rows of a file, then a fake microphone that plays speech; steps are answered, curves are drawn, segments are listed where
the model has labels, and nothing breaks the page's policy. Leaves page_test_rows.png and page_test_microphone.png beside the programs' folder."""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import wave

try:
    import numpy as np
    from websockets.sync.client import connect
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from live_client_test import FEATURES, ROOT, model
from oracle import BIN, MILLRACE, MODELS, need
from serving import Server

SPEECH = "/usr/share/asterisk/sounds/en_US_f_Allison/demo-congrats.wav"
SILERO = os.path.join(MODELS, "silero_vad_v6.onnx")


class Browser:
    """One page of Chromium, driven by its DevTools protocol."""

    def __init__(self, program, folder, sound):
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder}/profile",
            "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={sound}",
            "--autoplay-policy=no-user-gesture-required", "--window-size=1280,900", "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if line.startswith("DevTools listening on "):
                host = line.split("ws://", 1)[1].split("/", 1)[0]
                break
        else:
            raise AssertionError("Chromium ended before it could be driven")
        with urllib.request.urlopen(urllib.request.Request(f"http://{host}/json/new?about:blank", method="PUT"), timeout=20) as answer:
            address = json.load(answer)["webSocketDebuggerUrl"]
        self.connection = connect(address, max_size=None, compression=None)
        self.socket = self.connection.__enter__()
        self.number, self.complaints = 0, []
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            said = json.loads(self.socket.recv(timeout=60))
            if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])
            if said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(said["params"]["exceptionDetails"]["text"])
            if said.get("id") == self.number:
                assert "error" not in said, said["error"]
                return said["result"]

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.value("document.body.innerText"), self.complaints)
            time.sleep(0.1)

    def open(self, url, state="idle"):
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && document.body.dataset.state === '{state}'")
        self.wait(f"location.href === '{url}' && document.getElementById('file').disabled === {json.dumps(state != 'idle')}")

    def give_file(self, path):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[path])

    def screenshot(self, name):
        path = os.path.abspath(os.path.join(BIN, "..", name))
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        print("screenshot", path)

    def close(self):
        self.connection.__exit__(None, None, None)
        self.process.terminate()
        self.process.wait(timeout=20)


# How many pixels of the canvas are not blank.
INK = """(() => { const c = document.getElementById('curves');
  return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v > 0).length; })()"""


def check_rows(browser, path, folder):
    with Server(path, "--route", f"other={path}") as server:
        browser.open(server.url("http", ""))
        assert browser.value("document.getElementById('microphone').disabled")
        rows = np.random.default_rng(1).standard_normal((70, FEATURES)).astype("f4")
        np.savetxt(f"{folder}/rows.csv", rows, delimiter=",")
        np.save(f"{folder}/rows.npy", rows)
        shown = []
        for name in ("rows.csv", "rows.npy"):
            browser.give_file(f"{folder}/{name}")
            browser.wait(f"document.getElementById('status').textContent === 'ended after {len(rows)} steps'")
            time.sleep(0.2)  # the next frame
            assert browser.value(INK) > 500
            shown.append(browser.value("document.getElementById('curves').toDataURL()"))
        assert browser.value("document.querySelectorAll('#legend li').length") == 16
        browser.screenshot("page_test_rows.png")
        np.save(f"{folder}/wrong.npy", rows.astype("f8"))
        browser.give_file(f"{folder}/wrong.npy")
        browser.wait("document.body.dataset.state === 'failed' && document.getElementById('status').textContent.includes('f32')")
        browser.open(server.url("http", "other"))
        assert browser.value("document.getElementById('model').textContent").startswith("other: x f32")
        browser.give_file(f"{folder}/rows.npy")
        browser.wait(f"document.getElementById('status').textContent === 'ended after {len(rows)} steps'")


def check_microphone(browser, *model_words, labelled):
    with Server(*model_words) as server:
        browser.open(server.url("http", ""))
        browser.value("document.getElementById('microphone').click()")
        browser.wait("Number(document.body.dataset.steps) > 150")
        browser.wait("document.getElementById('rows').textContent === '1.0'")
        assert browser.value("document.getElementById('sessions').textContent") == "1"
        if labelled:
            browser.wait("document.querySelectorAll('#segments li').length > 0")
            assert "speech" in browser.value("document.getElementById('segments').innerText")
        lag = browser.value("document.getElementById('lag').textContent")
        assert lag.endswith(" ms") and float(lag.split()[0]) < 2000, lag
        assert browser.value(INK) > 100
        browser.screenshot("page_test_microphone.png")
        browser.value("document.getElementById('stop').click()")
        browser.wait("document.body.dataset.state === 'ended'")
        print("lag", lag, "steps", browser.value("document.body.dataset.steps"))


def check_token(browser, path, folder):
    """A page whose server asks for a token says so, and goes on once it has one. (Chromium reports the 401 as an error.)"""
    with open(f"{folder}/tokens", "w", encoding="ascii") as file:
        file.write("the-token-of-this-test\n")
    with Server(path, "--token-file", f"{folder}/tokens") as server:
        browser.open(server.url("http", ""), "failed")
        assert "token" in browser.value("document.getElementById('status').textContent")
        browser.value("(() => { const t = document.getElementById('token'); t.value = 'the-token-of-this-test'; t.onchange(); })()")
        browser.wait("document.body.dataset.state === 'idle'")
        browser.give_file(f"{folder}/rows.npy")
        browser.wait("document.getElementById('status').textContent === 'ended after 70 steps'")


def main():
    program = shutil.which("chromium")
    if program is None:
        print("skipped: no chromium")
        sys.exit(77)
    need(MILLRACE, SPEECH)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with wave.open(SPEECH) as speech:
            assert speech.getsampwidth() == 2
        path = f"{folder}/lstm.onnx"
        with open(path, "wb") as file:
            file.write(model(np.random.default_rng(1)).SerializeToString())
        browser = Browser(program, folder, SPEECH)
        try:
            check_rows(browser, path, folder)
            if os.path.exists(SILERO):
                config = os.path.join(ROOT, "apps", "demo", "silero_vad.toml")
                check_microphone(browser, SILERO, "--config", config, labelled=True)
            else:
                with open(f"{folder}/audio.toml", "w", encoding="ascii") as file:
                    file.write(f'[audio]\ninput = "x"\nrate = 16000\nwindow = {FEATURES}\nhop = 320\n')
                check_microphone(browser, path, "--config", f"{folder}/audio.toml", labelled=False)
            assert not browser.complaints, browser.complaints
            check_token(browser, path, folder)
        finally:
            browser.close()


if __name__ == "__main__":
    main()

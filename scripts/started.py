"""Programs that real-sglang.sh and real-pair.sh start: on free ports, with a log each in one folder, and ended with their children."""
import os, shlex, shutil, signal, socket, subprocess, sys, time, urllib.request


class Started:
    def __init__(self, out):
        self.out, self.all, self.taken = out, [], set()
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        # Who ends this ends what it started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by SIGTERM"))

    def port(self):
        while True:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                number = free.getsockname()[1]
            if number not in self.taken:
                self.taken.add(number)
                return number

    def start(self, name, command, env=None):
        print("$", shlex.join(command), "&", flush=True)
        with open(f"{self.out}/{name}.log", "w") as log:
            # A group of its own: SGLang has children that must end with it.
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        self.all.append(process)
        return process

    def ready(self, process, url, seconds, name):
        end = time.monotonic() + seconds
        while time.monotonic() < end and process.poll() is None:
            try:
                return urllib.request.urlopen(url, timeout=5).read()
            except OSError:
                time.sleep(0.5)
        sys.exit(f"error: {name} is not ready; see {self.out}/{name}.log")

    def end(self):
        for how, patience in [(signal.SIGTERM, 20), (signal.SIGKILL, 5)]:
            for process in self.all:
                # A group may outlive its first process.
                try:
                    os.killpg(process.pid, how)
                except ProcessLookupError:
                    pass
            for process in self.all:
                try:
                    process.wait(patience)
                except subprocess.TimeoutExpired:
                    pass

"""What the scripts of paired rounds share: programs that listen, traffic, figures of /metrics, and intervals of means."""
import json, os, re, socket, subprocess, sys, tempfile, time, urllib.request

binary, folder, started = os.environ["QUEUESCOPE"], tempfile.mkdtemp(), []

def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

def start(at, *command):
    """Starts what listens on port `at`, and waits until it does."""
    with open(f"{folder}/{at}.log", "w") as log:
        started.append(subprocess.Popen(command, stdout=log, stderr=log))
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", at)).close()
            return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"error: {command[0]} does not listen; see {folder}/{at}.log")

def front(name, server, *flags):
    """Starts a front before the server at this port; its port, and that of its admin."""
    at, admin = port(), port()
    start(at, binary, "proxy", "--listen", f"127.0.0.1:{at}", "--admin", f"127.0.0.1:{admin}", "--upstream",
          f"http://127.0.0.1:{server}", "--upstream-kind", "server", "--records", f"{folder}/{name}.csv", *flags)
    return at, admin

def traffic(at, requests, rate, name):
    """Sends requests, which must all go well, to the front at this port; the summary of the run."""
    out = f"{folder}/{name}"
    subprocess.run([binary, "traffic", "--base-url", f"http://127.0.0.1:{at}", "--upstream-kind", "server", "--num-prompts",
                    str(requests), "--request-rate", str(rate), "--random-input-len", "32", "--random-output-len", "8",
                    "--max-failed", "0", "--output-dir", out],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.load(open(f"{out}/summary.json"))

def metric(admin, name):
    """The sum of a metric's values at the admin port of a proxy."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics").read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))

def interval(values):
    """The mean, and half the width of its 95 % confidence interval."""
    mean = sum(values) / len(values)
    spread = (sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)) ** 0.5
    # Student's t for 95 %: 2.26 for 10 rounds, 2.14 for 15.
    t = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09}.get(len(values), 2.0)
    return mean, t * spread / len(values) ** 0.5

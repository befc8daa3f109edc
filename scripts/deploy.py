"""Holds deploy/ against the program: python3 scripts/deploy.py QUEUESCOPE SMG SCRATCH-FOLDER (called by deploy.sh).

Every config and every command line in deploy/ is given to `queuescope check`. What names, ports, files and times must have
in common is compared. Then the processes of compose.yaml and of the Kubernetes manifests run here: a service's name becomes a
loopback address of its own, 0.0.0.0 too, and files go to a scratch folder; all else is as it is written there. The router
finds the pods by asking a cluster that is no more than a list of them.
"""

import csv
import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import yaml

DEPLOY = Path("deploy")
QUEUESCOPE, SMG, SCRATCH = sys.argv[1], sys.argv[2], Path(sys.argv[3])
SECRETS = {"hop-secret": "0123456789abcdef0123456789abcdef", "admin-token": "a-token-of-16-characters", "router-key": "a-key"}
# That of the simulated servers.
MODEL = "sim-llama"
PATIENCE_S = 60


class Service:
    """A process of a topology, at an address of its own."""

    def __init__(self, name, address, argv, files=()):
        self.name, self.address, self.argv, self.files = name, address, argv, dict(files)
        self.folder, self.env = None, {}


class Topology:
    """Services that find each other by name, in a scratch folder."""

    def __init__(self, name, services):
        self.folder, self.services = SCRATCH / name, services
        for at, service in enumerate(services):
            service.folder = self.folder / service.name
            (service.folder / "data").mkdir(parents=True)
            for file, value in SECRETS.items():
                (service.folder / file).write_text(value)
            for path, text in service.files.items():
                (service.folder / Path(path).name).write_text(self.here(text, service))
        self.running = []

    def here(self, text, service):
        """A command line or config as it is to be on this machine."""
        for other in self.services:
            text = re.sub(rf"(?<![\w.-]){re.escape(other.name)}:(?=\d)", f"{other.address}:", text)
        text = text.replace("0.0.0.0", service.address)
        text = re.sub(r"/(var/lib|run)/queuescope(?=/)", str(service.folder / "data"), text)
        return re.sub(r"(/etc/queuescope|/run/secrets/queuescope|/run/credentials/[\w.]+)/", f"{service.folder}/", text)

    def argv(self, service):
        program = SMG if service.argv[0] == "launch" else QUEUESCOPE
        # In a container /tmp is its own.
        own = [arg.replace("/tmp/", f"{service.folder}/") for arg in service.argv]
        return [program] + [self.here(arg, service) for arg in own]

    def check(self):
        for service in self.services:
            argv = self.argv(service)
            if argv[1] == "proxy":
                check([argv[0], "check"] + argv[2:], service.name)

    def start(self, names):
        for service in self.services:
            if service.name in names:
                log = open(service.folder / "log", "wb")
                process = subprocess.Popen(self.argv(service), stdout=log, stderr=log, env=os.environ | service.env)
                self.running.append((service, process))

    def end(self):
        for _, process in reversed(self.running):
            process.terminate()
        for service, process in self.running:
            if process.wait(timeout=PATIENCE_S) not in (0, -15):
                raise Wrong(f"{service.name} ended with {process.returncode}: {service.folder / 'log'}")

    def of(self, name):
        return next(service for service in self.services if service.name == name)


class Cluster(http.server.ThreadingHTTPServer):
    """As much of a Kubernetes API as service discovery asks for: the pods of a label, each ready when its hop is."""

    daemon_threads = True

    def __init__(self, address, labels, pods):
        super().__init__((address, 0), Asked)
        self.labels, self.pods = labels, pods
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """The router has ended while it was told something."""

    def kubeconfig(self):
        host, port = self.server_address
        named = {"clusters": {"cluster": {"server": f"http://{host}:{port}"}}, "users": {"user": {}},
                 "contexts": {"context": {"cluster": "any", "user": "any"}}}
        lists = {kind: [{"name": "any"} | value] for kind, value in named.items()}
        return yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "any"} | lists)

    def pod(self, name, address):
        ready = ask(f"http://{address}:8801/readyz")[0] == 200
        meta = {"name": name, "namespace": "llm", "uid": name, "resourceVersion": "1", "labels": self.labels}
        status = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": str(ready)}]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}, "status": status}

    def selected(self, query):
        pairs = dict(pair.split("=") for pair in query.get("labelSelector", [""])[0].split(",") if pair)
        return self.pods if pairs and pairs.items() <= self.labels.items() else {}


class Asked(http.server.BaseHTTPRequestHandler):
    """A request to the cluster."""

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        query = urllib.parse.parse_qs(url.query)
        self.send_response(200 if url.path == "/api/v1/namespaces/llm/pods" else 403)
        self.send_header("content-type", "application/json")
        self.end_headers()
        pods = self.server.selected(query)
        now = lambda: [self.server.pod(*pod) for pod in pods.items()]
        if "watch" not in query:
            answer = {"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": now()}
            self.wfile.write(json.dumps(answer).encode())
        while "watch" in query:
            time.sleep(0.5)
            for pod in now():
                self.wfile.write(json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n")

    def log_message(self, *_):
        pass


class Wrong(Exception):
    """What is not as it must be."""


def must(holds, what):
    if not holds:
        raise Wrong(what)


def check(argv, what):
    done = subprocess.run(argv, capture_output=True, text=True)
    must(done.returncode == 0, f"{what}: {done.stderr or done.stdout}")
    return done.stdout


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


def drain_s(config):
    return int(re.search(r"^drain_timeout_s = (\d+)$", config, re.M)[1])


def compose():
    """The services that can run here, at 127.0.81.x."""
    services = documents(DEPLOY / "compose.yaml")[0]["services"]
    found = []
    for name, service in services.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            must(not source.startswith(".") or (DEPLOY / source).exists(), f"compose.yaml: {source} is not there")
        if "queuescope" not in service["image"]:
            continue
        config = (DEPLOY / "compose/queuescope.toml").read_text()
        argv = shlex.split(service.get("command", "proxy --config /etc/queuescope/config.toml"))
        files = {"config.toml": config} if name == "queuescope" else {}
        found.append(Service(name, f"127.0.81.{len(found) + 1}", argv, files))
    grace = seconds(services["queuescope"]["stop_grace_period"])
    must(grace > drain_s(config), "compose.yaml: stop_grace_period must be more than drain_timeout_s")
    return Topology("compose", found)


def dropped_at_hops():
    """What the example scrape config drops where a process has hops only."""
    jobs = {job["job_name"]: job for job in documents(DEPLOY / "prometheus/prometheus.yml")[0]["scrape_configs"]}
    (rule,) = jobs["queuescope-hops"]["metric_relabel_configs"]
    return rule["regex"]


def kubernetes():
    """A front, the router, and two pods of hop and server, at 127.0.82.x."""
    folder = DEPLOY / "kubernetes"
    configs = {path.name: path.read_text() for path in folder.glob("*.toml")}
    templates = {d["metadata"]["name"]: d["spec"]["template"]
                 for path in folder.glob("*.yaml") for d in documents(path) if d["kind"] == "Deployment"}
    pods = {name: template["spec"] for name, template in templates.items()}
    labels = templates["sglang"]["metadata"]["labels"]
    front, router, hop = pods["queuescope"], pods["router"], pods["sglang"]["initContainers"][0]
    server = pods["sglang"]["containers"][0]
    pause = front["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    must(front["terminationGracePeriodSeconds"] >= pause + drain_s(configs["front.toml"]) + 5,
         "front.yaml: terminationGracePeriodSeconds must be more than preStop and drain_timeout_s")
    ports = {name: {port["name"] for container in pod["containers"] + pod.get("initContainers", [])
                    for port in container.get("ports", [])} for name, pod in pods.items()}
    for monitor in documents(folder / "monitoring/podmonitors.yaml"):
        app = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            must(endpoint["port"] in ports[app], f"podmonitors.yaml: {app} has no port {endpoint['port']}")
            must({"action": "labeldrop", "regex": "endpoint"} in endpoint["relabelings"],
                 f"podmonitors.yaml: the operator's label `endpoint` hides that of the metrics of {endpoint['port']}")
            if endpoint["port"] == "hop-admin":
                must([rule["regex"] for rule in endpoint["metricRelabelings"]] == [dropped_at_hops()],
                     "podmonitors.yaml: drops at hops what the job queuescope-hops of prometheus.yml does not")
    must({"--port=30000", "--enable-metrics", "--enable-cache-report"} <= set(server["args"]), "sglang.yaml: the server's flags")
    for pod, config in (("queuescope", "front.toml"), ("sglang", "hop.toml")):
        (secret,) = [volume["secret"] for volume in pods[pod]["volumes"] if "secret" in volume]
        mounted = {item["path"] for item in secret["items"]}
        must(mounted == set(re.findall(r"/run/secrets/queuescope/([\w-]+)", configs[config])),
             f"{pod}: the secret's items are not those that {config} names")
    services = [Service("queuescope", "127.0.82.1", front["containers"][0]["args"], configs)]
    addresses = {}
    for pod in (11, 12):
        address = f"127.0.82.{pod}"
        addresses[f"sglang-{pod}"] = address
        argv = [arg.replace("$(POD_NAME)", f"sglang-{pod}").replace("$(POD_IP)", address) for arg in hop["args"]]
        services.append(Service(f"hop-{pod}", address, argv, configs))
        services.append(Service(f"server-{pod}", address, ["sim", "--host=0.0.0.0", "--max-running-requests=4"]))
    argv = [arg.replace("$(POD_NAMESPACE)", "llm").replace("$(ROUTER_KEY)", SECRETS["router-key"])
            for arg in router["containers"][0]["args"]]
    found = Service("router", "127.0.82.2", argv)
    topology = Topology("kubernetes", services + [found])
    cluster = Cluster("127.0.82.3", labels, addresses)
    (found.folder / "kubeconfig").write_text(cluster.kubeconfig())
    found.env = {"KUBECONFIG": str(found.folder / "kubeconfig")}
    return topology


def ask(url, token=None):
    """Status and body."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError as error:
        return 0, str(error)


def until(what, holds):
    end = time.monotonic() + PATIENCE_S
    while not holds():
        must(time.monotonic() < end, f"{what}: not within {PATIENCE_S} s")
        time.sleep(0.1)


def served(topology, requests, token=None):
    """What must be so once the front has served."""
    front = topology.of("queuescope")
    admin = f"{front.address}:8801"
    check([QUEUESCOPE, "health", admin], "health")
    status, metrics = ask(f"http://{admin}/metrics", token)
    must(status == 200 and "queuescope_rows_written_total" in metrics, f"/metrics: {status}")
    must(token is None or ask(f"http://{admin}/metrics")[0] == 401, "/metrics asks for no token")
    path = front.folder / "data/records.csv"
    done = lambda rows: [row for row in rows if row["outcome"] == "ok"]
    rows = lambda: list(csv.DictReader(path.open()))
    until(f"{requests} rows", lambda: len(done(rows())) >= requests)
    ok = done(rows())
    for column in ("queue_time_in_router", "host", "worker"):
        empty = [row["req_id"] for row in ok if not row[column]]
        must(not empty, f"{topology.folder.name}: {column} is empty in {len(empty)} of {len(ok)} rows")
    must(len({row["host"] for row in ok}) == 2, "not both servers have served")
    queued = [row for row in ok if row["endpoint"] == "/generate"]
    must(queued and all(row["pure_queue_time"] for row in queued), "pure_queue_time is empty")
    return len(ok)


def routed(topology):
    """Waits until requests come through."""
    front = topology.of("queuescope").address
    probe = [QUEUESCOPE, "probe", f"http://{front}:8800", "--model", MODEL, "--output-len", "1"]
    until("a request through all", lambda: subprocess.run(probe, capture_output=True).returncode == 0)


def send(commands):
    """Runs generators at the same time."""
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=pipe, text=True) for command in commands]
    for process in running:
        _, said = process.communicate(timeout=PATIENCE_S)
        # 3: late, as all of them and the servers share this machine. That every request came through, the rows tell.
        must(process.returncode in (0, 3), f"traffic ended with {process.returncode}: {said}")


def run_compose(topology):
    # In the order in which compose starts them.
    topology.start({"router", "sglang-0", "sglang-1"})
    topology.start({"queuescope"})
    routed(topology)
    traffic = [s for s in topology.services if s.name.startswith("traffic")]
    for service in traffic:
        service.argv = [arg if arg != "600" else "3" for arg in service.argv]
    send([topology.argv(service) for service in traffic])
    return served(topology, 20)


def run_kubernetes(topology):
    topology.start({s.name for s in topology.services} - {"server-11", "server-12"})
    token = SECRETS["admin-token"]
    hop = topology.of("hop-11").address
    until("the hop lives", lambda: ask(f"http://{hop}:8801/healthz")[0] == 200)
    must(ask(f"http://{hop}:8801/readyz")[0] == 503, "a hop is ready without its server")
    until("the router lives", lambda: ask("http://127.0.82.2:8000/liveness")[0] == 200)
    must(ask("http://127.0.82.2:8000/readiness")[0] == 503, "the router is ready without a server")
    topology.start({"server-11", "server-12"})
    until("the hop is ready", lambda: ask(f"http://{hop}:8801/readyz")[0] == 200)
    routed(topology)
    must(ask("http://127.0.82.2:8000/readiness")[0] == 200, "the router is not ready")
    front = topology.of("queuescope").address
    send([[QUEUESCOPE, "traffic", "--base-url", f"http://{front}:8800", "--request-rate", "20", "--num-prompts", "40",
           "--random-input-len", "64", "--random-output-len", "16", "--output-dir", str(topology.folder / "run"),
           # smg's service discovery brings its multi-model mode along, in which /generate must name one.
           "--extra-request-body", json.dumps({"model": MODEL})]])
    must(ask(f"http://{front}:8800/workers")[0] == 401, "the router's workers are anyone's to change")
    sharded(front, topology.folder)
    # Stamps of hops elsewhere are believed only if they are signed with the secret.
    count = served(topology, 40, token)
    _, metrics = ask(f"http://{front}:8801/metrics", token)
    refused = re.search(r"^queuescope_hop_stamps_refused_total (\d+)", metrics, re.M)
    must(refused is None or refused[1] == "0", "the front refuses its hops' stamps")
    return count


def sharded(front, scratch):
    """The Jobs of load.yaml and load-report.yaml as processes, for some seconds."""
    folder = DEPLOY / "kubernetes"
    (job,) = [d["spec"] for d in documents(folder / "load.yaml") if d["kind"] == "Job"]
    (merge,) = [d["spec"] for d in documents(folder / "load-report.yaml")]
    shards = job["completions"]
    args, of_report = (spec["template"]["spec"]["containers"][0]["args"] for spec in (job, merge))
    must(job["completionMode"] == "Indexed" and job["parallelism"] == shards and f"--shard=$(SHARD)/{shards}" in args,
         "load.yaml: completions, parallelism and the N of --shard must be one number")
    read = [arg for arg in of_report if "/shard-" in arg]
    must(read == [f"/results/START_AT/shard-{index}" for index in range(shards)], "load-report.yaml: not the shards of load.yaml")
    start = int(time.time()) + 5
    changed = {"--base-url": f"http://{front}:8800", "--model": MODEL, "--request-rate": "20", "--duration": "3"}

    def here(arg, shard=None):
        flag, _, value = arg.partition("=")
        arg = f"{flag}={changed[flag]}" if flag in changed else arg
        return arg.replace("$(SHARD)", str(shard)).replace("START_AT", str(start)).replace("/results", str(scratch / "results"))

    small = ["--random-input-len=64", "--random-output-len=4"]
    send([[QUEUESCOPE] + [here(arg, shard) for arg in args] + small for shard in range(shards)])
    runs = [scratch / "results" / str(start) / f"shard-{shard}" for shard in range(shards)]
    places = sorted(int(row["req_id"].rsplit("-", 1)[1]) for run in runs for row in csv.DictReader((run / "requests.csv").open()))
    must(places == list(range(len(places))), "shards together have not sent every request once")
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    must({summary["started_at"] for summary in summaries} == {start}, "shards have not begun at one moment")
    check([QUEUESCOPE] + [here(arg) for arg in of_report], "report --merge")
    return len(places)


def dashboards():
    """Every dashboard is in the ConfigMap."""
    listed = documents(Path("grafana/kustomization.yaml"))[0]["configMapGenerator"][0]["files"]
    there = {f"dashboards/{path.name}" for path in Path("grafana/dashboards").glob("*.json")}
    must(set(listed) == there, f"grafana/kustomization.yaml: {set(listed) ^ there}")


def collector():
    """Every part of a pipeline is there, and every part is in a pipeline."""
    config = documents(DEPLOY / "otel-collector.yaml")[0]
    for kind in ("receivers", "processors", "exporters"):
        used = {part for pipeline in config["service"]["pipelines"].values() for part in pipeline[kind]}
        must(used == set(config[kind]), f"otel-collector.yaml: {kind} {set(config[kind]) ^ used}")
    must(set(config["service"]["extensions"]) == set(config["extensions"]), "otel-collector.yaml: extensions")


def systemd():
    """The configs for a service, with a secret where systemd would put it."""
    for config in sorted((DEPLOY / "systemd").glob("*.toml")):
        topology = Topology(f"systemd-{config.stem}",
                            [Service("any", "0.0.0.0", ["proxy", "--config=/etc/queuescope/config.toml"], {"config.toml": config.read_text()})])
        topology.check()


def main():
    collector()
    dashboards()
    systemd()
    for topology, run in ((compose(), run_compose), (kubernetes(), run_kubernetes)):
        topology.check()
        try:
            count = run(topology)
        finally:
            topology.end()
        print(f"deploy/{topology.folder.name}: {count} requests through front, router and hops")


if __name__ == "__main__":
    try:
        main()
    except Wrong as wrong:
        sys.exit(f"error: deploy: {wrong}")

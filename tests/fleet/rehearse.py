#!/usr/bin/env python3
"""rehearse.py - runs a rendered Kubernetes overlay in containers on one machine, from the first start to the last SIGTERM.

  kubectl kustomize OVERLAY > fleet.yaml; penstock keygen --k8s > secret.yaml
  rehearse.py --replace penstock-server-1 --restart penstock-server-0 fleet.yaml secret.yaml

Each replica is one container, with the image, command, environment, user, volumes and names that Kubernetes would give
it (support/pods.py, support/engine.py).  Workers start first, which is the hardest order.  Then all become ready; one
server is killed and returns with another address; another is restarted with preStop and SIGTERM; the Job completes; the
remaining pods end with preStop, SIGTERM and their grace.  Exit code 0: all of that succeeded.

It proves commands, environment, names, users, volumes, probes and drains.  It is not a Kubernetes: it does not
schedule, limit or filter.
"""
import argparse
import json
import pathlib
import shlex
import sys
import time

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))
from engine import Engine, http_status  # noqa: E402
from pods import Fleet, Unreadable, make, pods_of  # noqa: E402


class Failed(Exception):
    """The rehearsal failed; says why."""


class Actor:
    """A running replica: its address, its probes' results, its number of starts."""

    def __init__(self, pod):
        self.pod, self.starts, self.done, self.doomed = pod, 0, False, False
        self.forget()

    def forget(self):
        self.started_up, self.ready, self.bad, self.asked = False, False, 0, 0.0


class Rehearsal:
    def __init__(self, fleet, engine, arguments):
        self.fleet, self.engine, self.arguments = fleet, engine, arguments
        self.actors = {}
        self.begun = time.monotonic()

    def say(self, text):
        print(f"{time.monotonic() - self.begun:7.1f}  {text}", flush=True)

    # ---- what controllers and kubelet do all the time ----

    def launch(self, actor):
        actor.forget()
        actor.starts += 1
        actor.ip = self.engine.new_address()
        self.engine.start(actor.pod, actor.ip)

    def tick(self):
        """Checks every container, restarts those that ended, runs the probes that are due."""
        states = self.engine.states()
        for actor in self.actors.values():
            if actor.done or actor.doomed:
                continue
            running, code = states.get(actor.pod.name, (False, -1))
            if running:
                self.ask(actor)
            else:
                self.ended(actor, code)
        time.sleep(0.2)

    def ended(self, actor, code):
        pod, actor.ready = actor.pod, False
        log = self.engine.logs(pod.name)
        if pod.owner["kind"] == "Job":
            self.say(f"{pod.name} ended with {code}")
            if code == 0:
                actor.done = True
                return
            if self.rule(pod, code) == "FailJob" or actor.starts > pod.owner["spec"].get("backoffLimitPerIndex", 6):
                raise Failed(f"{pod.who} failed: {pod.name} ended with {code}:\n{log}")
        elif actor.starts > 5:
            raise Failed(f"{pod.name} was started {actor.starts} times and ended with {code} again:\n{log}")
        else:
            self.say(f"{pod.name} ended with {code}; started again\n{indent(log)}")
        self.engine.remove(pod.name)
        self.launch(actor)

    @staticmethod
    def rule(pod, code):
        """The reaction of the Job's podFailurePolicy to an exit code."""
        for rule in (pod.owner["spec"].get("podFailurePolicy") or {}).get("rules") or []:
            codes = rule.get("onExitCodes")
            if codes and (code in codes["values"]) == (codes["operator"] == "In"):
                return rule["action"]
        return "Count"

    def ask(self, actor):
        """Startup first; then readiness and liveness."""
        container, now = actor.pod.container, time.monotonic()
        startup = container.get("startupProbe")
        which = startup if startup and not actor.started_up else container.get("readinessProbe")
        if which is None:
            actor.started_up = actor.ready = True
            return
        if now - actor.asked < (1 if not actor.ready else which.get("periodSeconds", 10)):
            return
        actor.asked = now
        said = self.engine.probe(actor.pod, actor.ip, which)
        if which is startup:
            actor.started_up, actor.bad = said, actor.bad + (not said)
            if actor.bad >= startup.get("failureThreshold", 3) * startup.get("periodSeconds", 10):
                raise Failed(f"{actor.pod.name} did not start up:\n{self.engine.logs(actor.pod.name)}")
            return
        if said != actor.ready:
            self.say(f"{actor.pod.name} is {'ready' if said else 'not ready'}")
        actor.ready = said
        self.live(actor)

    def live(self, actor):
        """Liveness: a kubelet would kill after that many consecutive failures; here they are a failure of the rehearsal."""
        probe = actor.pod.container.get("livenessProbe")
        actor.bad = 0 if not probe or self.engine.probe(actor.pod, actor.ip, probe) else actor.bad + 1
        if probe and actor.bad >= probe.get("failureThreshold", 3):
            raise Failed(f"{actor.pod.name} is not alive: {actor.bad} probes in a row:\n{self.engine.logs(actor.pod.name)}")

    def until(self, what, condition):
        """Ticks until the condition holds."""
        deadline = time.monotonic() + self.arguments.patience
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.engine.logs(name)}" for name in self.actors)
                raise Failed(f"{what}: not within {self.arguments.patience} s\n{logs}")
            self.tick()
        self.say(what)

    # ---- the scenes ----

    def run(self):
        workloads = pods_of(self.fleet)
        for name in sorted(workloads): # Job/... before StatefulSet/...: workers start without peers
            for pod in workloads[name]:
                self.actors[pod.name] = Actor(pod)
                self.launch(self.actors[pod.name])
        self.say(f"{len(self.actors)} containers: " + ", ".join(f"{len(p)} of {n}" for n, p in sorted(workloads.items())))
        self.until("all are ready", lambda: all(a.ready or a.done for a in self.actors.values()))
        self.shares()
        for name in self.arguments.replace:
            self.replace(self.actor(name))
        for name in self.arguments.restart:
            self.restart(self.actor(name))
        workers = [a for a in self.actors.values() if a.pod.owner["kind"] == "Job"]
        self.until("the Job is complete", lambda: all(a.done for a in workers))
        for actor in workers:
            self.say(f"{actor.pod.name} said\n{indent(self.engine.logs(actor.pod.name, 4))}")
        for actor in [a for a in reversed(self.actors.values()) if not a.done]: # servers before the scheduler: drains ask it
            self.leave(actor)

    def shares(self):
        """The scheduler has seen the workers of each pod read each other's memory, and those of two pods fail to."""
        self.until("training has begun", lambda: self.step() >= 0)
        each = int(next(c["data"]["PET_NPROC_PER_NODE"] for c in self.fleet.kind("ConfigMap") if "PET_NPROC_PER_NODE" in c.get("data", {})))
        workers = [m for m in self.status().get("members", []) if m["role"] == "worker"]
        for member in workers:
            first = member["rank"] // each * each
            wanted = [rank for rank in range(first, first + each) if rank != member["rank"]]
            if sorted(member.get("shares_memory_with", [])) != wanted:
                raise Failed(f"worker {member['rank']} shares memory with {member.get('shares_memory_with')}, not with {wanted}")
        self.say(f"{len(workers)} workers share the memory of their pods, {each} in each")

    def actor(self, name):
        if name not in self.actors:
            raise Failed(f"there is no pod '{name}'; there are {', '.join(self.actors)}")
        return self.actors[name]

    def replace(self, actor):
        """A node is lost: the container dies without notice, and the controller starts the pod on another node."""
        name, old = actor.pod.name, actor.ip
        self.until(f"training is at step {self.arguments.at_step} or later", lambda: self.step() >= self.arguments.at_step)
        self.engine.call("kill", "--signal", "KILL", name)
        self.engine.remove(name)
        actor.doomed = True
        actor.doomed = False
        actor.pod = make(self.fleet, actor.pod.owner, actor.pod.number)
        self.launch(actor)
        self.say(f"{name} was killed at {old}; comes back at {actor.ip}")
        self.until(f"{name} is ready again", lambda: actor.ready)
        self.goes_on()

    def restart(self, actor):
        """The effect of a rolling update on each pod: preStop and SIGTERM, then a new pod."""
        self.goes_on()
        self.leave(actor)
        self.engine.remove(actor.pod.name)
        actor.doomed = False
        self.launch(actor)
        self.say(f"{actor.pod.name} comes back at {actor.ip}")
        self.until(f"{actor.pod.name} is ready again", lambda: actor.ready)
        self.goes_on()

    def goes_on(self):
        step = self.step()
        self.until(f"training has gone on from step {step}", lambda: self.step() > step or self.complete())

    def complete(self):
        return all(a.done for a in self.actors.values() if a.pod.owner["kind"] == "Job")

    def leave(self, actor):
        """Ends a pod as Kubernetes does; it must be gone before its grace ends."""
        actor.doomed = True
        code, took, killed = self.engine.end(actor.pod)
        self.say(f"{actor.pod.name} was asked to end: exit {code} after {took:.1f} s of {actor.pod.grace} s")
        if killed or code in (137, -1):
            raise Failed(f"{actor.pod.name} did not end by itself:\n{self.engine.logs(actor.pod.name)}")

    def step(self):
        """The current step; -1 while there is no answer."""
        return int(self.status().get("step", -1))

    def status(self):
        """The scheduler's /status; {} while there is no answer."""
        actor = self.scheduler()
        token = next((v for s in self.fleet.kind("Secret") for k, v in self.fleet.values("Secret", s["metadata"]["name"], "").items()
                      if k == "http-token"), b"").decode().strip()
        url = f"http://{actor.ip}:{actor.pod.port('http')}/status"
        code, body = http_status(url, {"Authorization": f"Bearer {token}"}, 3)
        return json.loads(body) if code == 200 else {}

    def scheduler(self):
        found = [a for a in self.actors.values() if a.pod.container["name"] == "scheduler"]
        if not found:
            raise Failed("no container is named 'scheduler': nobody to ask how far training is")
        return found[0]


def indent(text):
    return "\n".join(f"           | {line}" for line in text.splitlines())


def adapt(fleet, arguments):
    """The differences to the overlay that the command line requests; each is printed."""
    for text in arguments.scale:
        name, count = text.split("=")
        owner = fleet.need(*name.split("/"), "--scale")
        for key in ("replicas",) if owner["kind"] == "StatefulSet" else ("completions", "parallelism"):
            owner["spec"][key] = int(count)
    for text in arguments.setting:
        name, value = text.split("=", 1)
        for config in fleet.kind("ConfigMap"):
            if name in (config.get("data") or {}):
                config["data"][name] = value
    for text in arguments.more:
        name, words = text.split("=", 1)
        container = fleet.need(*name.split("/"), "--more")["spec"]["template"]["spec"]["containers"][0]
        container["args" if container.get("args") else "command"] += shlex.split(words)
    for option in ("scale", "setting", "more"):
        for text in getattr(arguments, option):
            print(f"         not as in the overlay: --{option} {text}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="rendered manifests, and the Secret")
    parser.add_argument("--podman", default="podman", help="the command that runs podman")
    parser.add_argument("--dir", required=True, help="an empty folder for claims, files and empty volumes")
    parser.add_argument("--scale", action="append", default=[], metavar="KIND/NAME=N", help="so many replicas")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="another value of a ConfigMap's key")
    parser.add_argument("--more", action="append", default=[], metavar="KIND/NAME=WORDS", help="more words for the command")
    parser.add_argument("--replace", action="append", default=[], metavar="POD", help="killed, and started under another address")
    parser.add_argument("--restart", action="append", default=[], metavar="POD", help="ended with preStop and SIGTERM, and started anew")
    parser.add_argument("--at-step", type=int, default=5, help="training is this far before anything is killed")
    parser.add_argument("--patience", type=int, default=180, help="seconds that one scene may take")
    return parser.parse_args()


def main():
    arguments = parse()
    fleet = Fleet([d for file in arguments.files for d in yaml.safe_load_all(pathlib.Path(file).read_text())])
    engine = None
    try:
        adapt(fleet, arguments)
        engine = Engine(arguments.podman, arguments.dir)
        Rehearsal(fleet, engine, arguments).run()
    except (Failed, Unreadable, RuntimeError) as error:
        print(f"rehearse: {error}", file=sys.stderr)
        return 1
    finally:
        if engine:
            engine.close()
    print("rehearse: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

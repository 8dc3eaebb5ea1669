"""engine.py - pods as containers of podman: the part of a kubelet that prepares volumes, starts, probes, and ends with grace.

Not imitated, because the rehearsal's machine may have no cgroups and no pod scheduler: limits of memory and processors,
devices, placement of pods, NetworkPolicies.
"""
import json
import os
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

from pods import Unreadable

NETWORK = "rehearsal"
SUBNET = "10.79.0"


class Engine:
    def __init__(self, podman, folder):
        self.podman, self.folder = podman.split(), pathlib.Path(folder)
        self.next_address = 10
        self.call("network", "create", "--subnet", f"{SUBNET}.0/24", NETWORK)

    def call(self, *words, check=True, timeout=120):
        done = subprocess.run([*self.podman, *words], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        if check and done.returncode != 0:
            raise RuntimeError(f"podman {' '.join(words)[:200]}: {done.stderr.strip()}")
        return done

    def new_address(self):
        self.next_address += 1
        return f"{SUBNET}.{self.next_address}"

    def states(self):
        """name -> (is it running, exit code)."""
        rows = json.loads(self.call("ps", "--all", "--format", "json").stdout or "[]")
        return {row["Names"][0]: (row["State"] == "running", row.get("ExitCode", 0)) for row in rows}

    def logs(self, name, lines=30):
        done = self.call("logs", "--tail", str(lines), name, check=False)
        return (done.stdout + done.stderr).rstrip()

    def remove(self, name):
        self.call("rm", "--force", "--time", "0", name, check=False)

    # ---- starting ----

    def start(self, pod, ip):
        """Starts the one container of the pod, as its manifest says."""
        command, args = pod.command(ip)
        words = ["run", "--detach", "--pull=never", "--cgroups=disabled", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096",
                 "--name", pod.name, "--hostname", pod.name, "--network", NETWORK, "--ip", ip, "--no-healthcheck"]
        for name in pod.names():
            words += ["--network-alias", name]
        words += self.security(pod)
        for mount in pod.container.get("volumeMounts") or []:
            words += self.mount(pod, mount)
        for name, value in pod.environment(ip).items():
            words += ["--env", f"{name}={value}"]
        if command:
            words += ["--entrypoint", json.dumps(command)]
        if pod.container.get("workingDir"):
            words += ["--workdir", pod.container["workingDir"]]
        self.call(*words, pod.container["image"], *args)

    @staticmethod
    def security(pod):
        said = pod.security()
        user, group = said.get("runAsUser"), said.get("runAsGroup", 0)
        words = []
        if said.get("runAsNonRoot") and user == 0:
            raise Unreadable(f"{pod.who} says runAsNonRoot and runAsUser 0")
        if user is not None:
            words += ["--user", f"{user}:{group}"]
        if "fsGroup" in said:
            words += ["--group-add", str(said["fsGroup"])]
        if said.get("readOnlyRootFilesystem"):
            words += ["--read-only", "--read-only-tmpfs=false"]
        if said.get("allowPrivilegeEscalation") is False:
            words += ["--security-opt", "no-new-privileges"]
        if (said.get("seccompProfile") or {}).get("type") == "Unconfined":
            words += ["--security-opt", "seccomp=unconfined"]
        for capability in (said.get("capabilities") or {}).get("drop") or []:
            words += [f"--cap-drop={capability}"]
        for capability in (said.get("capabilities") or {}).get("add") or []:
            words += [f"--cap-add={capability}"]
        return words

    def mount(self, pod, mount):
        volume, where = pod.volume(mount["name"]), mount["mountPath"]
        mode = "ro" if mount.get("readOnly") else "rw"
        if "subPath" in mount:
            raise Unreadable(f"{pod.who}: subPath is not understood")
        if (volume.get("emptyDir") or {}).get("medium") == "Memory":
            size = bytes_of(volume["emptyDir"].get("sizeLimit", "64Mi"))
            return ["--shm-size", str(size)] if where == "/dev/shm" else ["--tmpfs", f"{where}:rw,size={size},mode=1777"]
        if "emptyDir" in volume:
            folder = self.folder / "empty" / pod.name / mount["name"]
            prepare(folder, 0o2777, None)
        elif "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]
            if not claim.get("own"):
                pod.fleet.need("PersistentVolumeClaim", claim["claimName"], pod.who)
            folder = self.folder / "claims" / claim["claimName"]
            prepare(folder, 0o2770, pod.security().get("fsGroup"))
        elif "secret" in volume or "configMap" in volume:
            folder, mode = self.files(pod, mount["name"], volume), "ro"
        else:
            raise Unreadable(f"{pod.who}: volume '{mount['name']}' is of a kind that is not understood")
        return ["--volume", f"{folder}:{where}:{mode}"]

    def files(self, pod, name, volume):
        """A Secret or ConfigMap as a folder, with the links that a kubelet makes, so that one rename changes all files."""
        kind, source = ("Secret", volume["secret"]) if "secret" in volume else ("ConfigMap", volume["configMap"])
        values = pod.fleet.values(kind, source.get("secretName") or source["name"], pod.who)
        group = pod.security().get("fsGroup")
        folder = self.folder / "files" / pod.name / name
        prepare(folder / "..first", 0o755, None)
        link(folder / "..data", "..first")
        keys = {item["key"]: item["path"] for item in source.get("items") or []} or {key: key for key in values}
        for key, path in keys.items():
            file = folder / "..first" / path
            file.unlink(missing_ok=True)
            file.write_bytes(values[key])
            os.chown(file, 0, group if group is not None else 0)
            file.chmod(source.get("defaultMode", 0o644) | (0o440 if group is not None else 0))
            link(folder / path, f"..data/{path}")
        return folder

    # ---- asking ----

    def probe(self, pod, ip, probe):
        """Whether one probe says yes."""
        patience = probe.get("timeoutSeconds", 1)
        if "httpGet" in probe:
            get = probe["httpGet"]
            url = f"http://{ip}:{pod.port(get['port'])}{get.get('path', '/')}"
            headers = {row["name"]: row["value"] for row in get.get("httpHeaders") or []}
            return 200 <= http_status(url, headers, patience)[0] < 400
        if "tcpSocket" in probe:
            try:
                socket.create_connection((ip, pod.port(probe["tcpSocket"]["port"])), patience).close()
                return True
            except OSError:
                return False
        if "exec" in probe:
            return self.execute(pod, probe["exec"]["command"], patience) == 0
        raise Unreadable(f"{pod.who}: a probe of a kind that is not understood: {probe}")

    def execute(self, pod, command, patience):
        """Exit code of a command in the container; 124 on a timeout."""
        try:
            done = self.call("exec", pod.name, *command, check=False, timeout=patience)
        except subprocess.TimeoutExpired:
            return 124
        if done.returncode != 0:
            print(f"        {pod.name}: {' '.join(command)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}", flush=True)
        return done.returncode

    # ---- ending ----

    def end(self, pod):
        """Deletes a pod: preStop, SIGTERM, and SIGKILL when the grace is over.  -> exit code, seconds, was it killed"""
        begun = time.monotonic()
        hook = ((pod.container.get("lifecycle") or {}).get("preStop") or {})
        if "exec" in hook:
            self.execute(pod, hook["exec"]["command"], pod.grace)
        elif "sleep" in hook:
            time.sleep(hook["sleep"]["seconds"])
        elif hook:
            raise Unreadable(f"{pod.who}: preStop of a kind that is not understood: {hook}")
        left = max(2, pod.grace - (time.monotonic() - begun)) # at least two seconds
        asked = time.monotonic()
        self.call("stop", "--time", str(int(left)), pod.name, check=False, timeout=left + 60)
        killed = time.monotonic() - asked >= left
        _, code = self.states().get(pod.name, (False, -1))
        return code, time.monotonic() - begun, killed

    def close(self):
        for name in self.states():
            self.remove(name)
        self.call("network", "rm", "--force", NETWORK, check=False)


def http_status(url, headers, patience):
    """Status code (0: no answer) and body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=patience) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except OSError:
        return 0, b""


def prepare(folder, mode, group):
    folder.mkdir(parents=True, exist_ok=True)
    if group is not None:
        os.chown(folder, 0, group)
    folder.chmod(mode)


def link(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def bytes_of(quantity):
    """A Kubernetes quantity of memory in bytes."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}
    for unit, factor in units.items():
        if str(quantity).endswith(unit):
            return int(float(str(quantity)[:-len(unit)]) * factor)
    return int(quantity)

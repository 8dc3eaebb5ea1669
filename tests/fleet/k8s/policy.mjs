// policy.mjs - our rules for manifests, beyond their schemas:  node policy.mjs SETTINGS.md FILE...
// SETTINGS.md is the output of `penstock docs settings.md`: the variables that each role reads.
import fs from 'fs';
import { matches, pods, quantity, read, role, title, variables } from './manifests.mjs';

// {scheduler, server, worker} -> the set of variables that it reads.
export function readable(markdown) {
  const out = { worker: new Set(), server: new Set(), scheduler: new Set() };
  for (const [, variable, readers] of markdown.matchAll(/^\|[^|]*\| `(PENSTOCK_[A-Z0-9_]+)` \| ([a-z, ]+) \|/gm))
    for (const reader of readers.split(', ')) out[reader].add(variable);
  for (const name in out) if (!out[name].size) throw new Error(`no settings of ${name}`);
  return out;
}
const launchers = new Set(['PET_NODE_RANK', 'PET_NNODES', 'PET_NPROC_PER_NODE', 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'OMP_NUM_THREADS']);

// The initial number of N, MIN:MAX or MIN:N:MAX; `ofTwo` is its place in the second.
const first = (text, ofTwo) => ((p) => Number(p[[0, ofTwo, 1][p.length - 1]]))(String(text).split(':'));

// Each rule gets all manifests and reports faults with say(where, text).
const rules = {
  'image is pinned'(a, say) {
    for (const c of a.containers) {
      const tag = c.image?.includes('@sha256:') ? 'digest' : c.image?.split('/').pop().split(':')[1];
      if (!tag || tag === 'latest') say(c.where, `image ${c.image} has no fixed tag`);
    }
  },
  'no root'(a, say) {
    for (const p of a.pods) {
      const s = p.spec.securityContext ?? {};
      if (s.runAsNonRoot !== true || !(s.runAsUser > 0) || !(s.runAsGroup > 0)) say(p.where, 'may run as root');
    }
    for (const c of a.containers) {
      const s = c.securityContext ?? {};
      if (s.runAsUser === 0 || s.runAsNonRoot === false) say(c.where, 'runs as root');
    }
  },
  'seccomp'(a, say) {
    for (const p of a.pods) if (p.spec.securityContext?.seccompProfile?.type !== 'RuntimeDefault') say(p.where, 'has no seccomp profile');
    for (const c of a.containers)
      if ((c.securityContext?.seccompProfile?.type ?? 'RuntimeDefault') !== 'RuntimeDefault') say(c.where, 'has another seccomp profile');
  },
  'no privileges'(a, say) {
    for (const c of a.containers) {
      const s = c.securityContext ?? {};
      if (s.privileged || s.allowPrivilegeEscalation !== false) say(c.where, 'may gain privileges');
      if (s.capabilities?.drop?.join() !== 'ALL' || s.capabilities?.add) say(c.where, 'keeps capabilities');
    }
  },
  'root file system is read-only'(a, say) {
    for (const c of a.containers) if (c.securityContext?.readOnlyRootFilesystem !== true) say(c.where, 'can write to its root');
  },
  'nothing of the host'(a, say) {
    for (const p of a.pods) {
      if (p.spec.hostNetwork || p.spec.hostPID || p.spec.hostIPC) say(p.where, 'shares a namespace with its host');
      for (const v of p.spec.volumes ?? []) if (v.hostPath) say(p.where, `volume ${v.name} is a folder of the host`);
    }
    for (const c of a.containers) for (const port of c.ports ?? []) if (port.hostPort) say(c.where, `takes port ${port.hostPort} of its host`);
  },
  'no token of the API server'(a, say) {
    for (const p of a.pods) if (p.spec.automountServiceAccountToken !== false) say(p.where, 'is given a token of the API server');
  },
  'no links to services'(a, say) {
    for (const p of a.pods) if (p.spec.enableServiceLinks !== false) say(p.where, 'gets variables of services, among them PENSTOCK_ ones that are no settings');
  },
  'requests and limits'(a, say) {
    for (const c of a.containers)
      for (const what of ['cpu', 'memory']) {
        const request = quantity(c.resources?.requests?.[what]), limit = quantity(c.resources?.limits?.[what]);
        if (!(request > 0) || !(limit >= request)) say(c.where, `has no request and limit of ${what}`);
        else if (what === 'memory' && request !== limit) say(c.where, 'may be killed for memory it was not promised');
      }
  },
  'probes'(a, say) {
    for (const c of a.containers) {
      if (c.role === 'worker') continue;
      for (const [probe, path] of [['startupProbe', '/healthz'], ['livenessProbe', '/healthz'], ['readinessProbe', '/readyz']]) {
        const get = c[probe]?.httpGet;
        if (!get) say(c.where, `has no ${probe}`);
        else if (get.path !== path || !c.ports?.some((p) => p.name === get.port)) say(c.where, `${probe} asks ${get.path} at ${get.port}`);
      }
      const http = c.ports?.find((p) => p.name === 'http')?.containerPort, env = c.env.PENSTOCK_HTTP?.value;
      if (!env || Number(env.split(':').pop()) !== http) say(c.where, `serves HTTP at ${env}, and its port http is ${http}`);
    }
  },
  'services select pods and name their ports'(a, say) {
    for (const s of a.of('Service')) {
      const chosen = a.pods.filter((p) => matches({ matchLabels: s.spec.selector }, p.labels));
      if (!chosen.length || !Object.keys(s.spec.selector ?? {}).length) say(title(s), 'selects nothing');
      for (const port of s.spec.ports ?? [])
        for (const p of chosen) {
          const target = p.spec.containers.flatMap((c) => c.ports ?? []).find((x) => x.name === port.targetPort);
          if (!target) say(title(s), `there is no port ${port.targetPort} in ${p.where}`);
          else if (s.spec.clusterIP === 'None' && target.containerPort !== port.port)
            say(title(s), `is headless, and port ${port.port} is ${target.containerPort} in ${p.where}`);
        }
    }
  },
  'stateful sets have a headless service'(a, say) {
    for (const d of a.of('StatefulSet')) {
      if (!matches(d.spec.selector, d.spec.template.metadata.labels)) say(title(d), 'does not select its own pods');
      const s = a.of('Service').find((x) => x.metadata.name === d.spec.serviceName);
      if (!s || s.spec.clusterIP !== 'None') say(title(d), `there is no headless Service ${d.spec.serviceName}`);
      else if (!matches({ matchLabels: s.spec.selector }, d.spec.template.metadata.labels)) say(title(d), `${title(s)} does not select its pods`);
      else if (s.spec.publishNotReadyAddresses !== true) say(title(s), 'hides names until pods are ready, and none is ready before they have met');
    }
  },
  'budgets select pods'(a, say) {
    for (const d of a.of('PodDisruptionBudget')) {
      const chosen = a.pods.filter((p) => matches(d.spec.selector, p.labels));
      if (!chosen.length) say(title(d), 'selects nothing');
      if (!(d.spec.maxUnavailable <= 1)) say(title(d), 'lets more than one go at a time');
    }
    if (a.of('StatefulSet').some((d) => role(d.spec.template.spec.containers[0]) === 'server') && !a.of('PodDisruptionBudget').length)
      say('servers', 'have no PodDisruptionBudget');
  },
  'network is closed'(a, say) {
    const policies = a.of('NetworkPolicy');
    if (a.runtime) return;
    for (const p of a.pods)
      for (const way of ['Ingress', 'Egress'])
        if (!policies.some((n) => n.spec.policyTypes?.includes(way) && matches(n.spec.podSelector, p.labels))) say(p.where, `${way} is open`);
    for (const n of policies)
      for (const peers of [...(n.spec.ingress ?? []).map((r) => r.from), ...(n.spec.egress ?? []).map((r) => r.to)]) {
        if (!peers?.length) say(title(n), 'lets everybody through');
        for (const peer of peers ?? []) {
          const empty = (s) => s && !Object.keys(s.matchLabels ?? {}).length && !s.matchExpressions;
          if (peer.ipBlock || empty(peer.podSelector) || empty(peer.namespaceSelector)) say(title(n), 'lets everybody through');
        }
      }
  },
  'variables are read'(a, say) {
    for (const c of a.containers) {
      const seen = new Set();
      const all = new Set([...a.readable.worker, ...a.readable.server, ...a.readable.scheduler]);
      for (const v of c.variables) {
        const shared = !c.own.some((e) => e.name === v.name);
        const known = v.name.startsWith('PENSTOCK_') ? (shared ? all : a.readable[c.role]).has(v.name) : (shared || c.role === 'worker') && launchers.has(v.name);
        const used = c.variables.some((o) => o.value?.includes(`$(${v.name})`));
        if (!known && !used) say(c.where, `nothing reads ${v.name}`);
        for (const m of v.value?.matchAll(/\$\(([A-Za-z_0-9]+)\)/g) ?? []) if (!seen.has(m[1])) say(c.where, `${v.name} uses ${m[1]}, which comes later or never`);
        seen.add(v.name);
        if (v.value !== undefined && typeof v.value !== 'string') say(c.where, `${v.name} is no text`);
      }
      for (const f of c.envFrom ?? []) if (!a.of('ConfigMap').some((d) => d.metadata.name === f.configMapRef?.name)) say(c.where, `there is no ConfigMap ${f.configMapRef?.name}`);
    }
  },
  'numbers agree'(a, say) {
    for (const p of a.pods) {
      const c = a.containers.find((x) => x.pod === p);
      const servers = c.env.PENSTOCK_SERVERS?.value, world = c.env.PENSTOCK_WORLD_SIZE?.value, copies = Number(c.env.PENSTOCK_REPLICAS?.value ?? 0);
      if (c.role === 'server' && servers !== undefined && Number(servers) !== p.count) say(p.where, `there are ${p.count} servers, and PENSTOCK_SERVERS is ${servers}`);
      if (c.role === 'worker' && !a.runtime) {
        const nodes = first(c.env.PET_NNODES?.value, 0), each = first(c.env.PET_NPROC_PER_NODE?.value, 1), gpus = c.resources?.limits?.['nvidia.com/gpu'];
        if (nodes !== p.count || p.job.completions !== p.count) say(p.where, `there are ${p.count} pods of workers, and PET_NNODES is ${nodes}`);
        if (Number(world) !== nodes * each) say(p.where, `there are ${nodes} x ${each} workers, and PENSTOCK_WORLD_SIZE is ${world}`);
        if (gpus !== undefined && Number(gpus) !== each) say(p.where, `${each} workers have ${gpus} GPUs`);
      }
      if (c.role === 'scheduler' && p.count !== 1) say(p.where, `there are ${p.count} schedulers`);
      if (c.role === 'server' && copies >= p.count) say(p.where, `${copies} copies need more than ${p.count} servers`);
    }
    for (const g of a.of('PodGroup')) {
      const all = a.pods.reduce((n, p) => n + p.count, 0);
      if (g.spec.minMember !== all) say(title(g), `starts ${g.spec.minMember} together, and there are ${all}`);
    }
  },
  'members find the scheduler'(a, say) {
    const master = a.containers.find((c) => c.role === 'scheduler');
    for (const c of a.containers) {
      if (c.role === 'scheduler') continue;
      const host = c.env.PENSTOCK_MASTER_ADDR?.value, port = c.env.PENSTOCK_MASTER_PORT?.value;
      const service = a.of('Service').find((s) => s.metadata.name === host && matches({ matchLabels: s.spec.selector }, master?.pod.labels ?? {}));
      const set = c.pod.set && (a.runtime ? '$(SET)' : c.pod.owner.metadata.name);
      if (!service && host !== `${set}-scheduler-0-0.${set}`) say(c.where, `${host} is not the scheduler`);
      if (port !== master?.env.PENSTOCK_PORT?.value) say(c.where, `the scheduler does not listen at ${port}`);
      if (c.role === 'worker' && c.env.PENSTOCK_SCHEDULER?.value !== 'external') say(c.where, 'rank 0 would start a scheduler of its own');
    }
  },
  'ranks come from the index'(a, say) {
    const index = "metadata.annotations['batch.kubernetes.io/job-completion-index']", ordinal = "metadata.labels['apps.kubernetes.io/pod-index']";
    for (const c of a.containers) {
      const rank = (c.env.PET_NODE_RANK ?? c.env.PENSTOCK_RANK)?.from?.fieldRef?.fieldPath;
      if (c.role === 'worker' && a.runtime) continue; /* Trainer sets it */
      if (c.role === 'worker' && (rank !== index || c.pod.job.completionMode !== 'Indexed')) say(c.where, 'has no rank of an Indexed Job');
      if (c.role === 'worker' && c.env.RANK) say(c.where, 'gives all workers of a pod one rank');
      if (c.role === 'server' && rank !== (c.pod.job ? index : ordinal)) say(c.where, 'has no rank of its own');
      const host = c.env.PENSTOCK_HOST?.value;
      if (c.role === 'server' && (!host || !/\$\(/.test(host))) say(c.where, `others are told to reach it at ${host}`);
      if (c.role === 'server' && c.pod.owner.kind === 'StatefulSet' && host !== `$(POD_NAME).${c.pod.owner.spec.serviceName}`) say(c.where, `is not ${host}`);
    }
  },
  'shared memory has a size'(a, say) {
    for (const c of a.containers) {
      if (c.role !== 'worker') continue;
      const v = c.volume('/dev/shm');
      if (v?.emptyDir?.medium !== 'Memory' || !(quantity(v.emptyDir.sizeLimit) > 0)) say(c.where, 'has no sized /dev/shm');
      else if (quantity(v.emptyDir.sizeLimit) >= quantity(c.resources?.limits?.memory)) say(c.where, '/dev/shm is as large as its memory');
    }
  },
  'servers are drained'(a, say) {
    for (const c of a.containers) {
      if (c.role !== 'server' || c.pod.job) continue;
      const command = c.lifecycle?.preStop?.exec?.command?.join(' ') ?? '';
      const ms = Number(command.match(/--timeout-ms (\d+)/)?.[1]);
      if (!/penstock drain/.test(command)) say(c.where, 'is not drained before it ends');
      else if (!(c.pod.spec.terminationGracePeriodSeconds > ms / 1000)) say(c.where, `is killed before its drain of ${ms} ms can end`);
    }
  },
  'workers hear SIGTERM'(a, say) {
    for (const c of a.containers) if (c.role === 'worker' && c.command?.slice(0, 3).join(' ') !== 'tini -g --') say(c.where, 'is process 1, and a program without a handler is then deaf to SIGTERM');
  },
  'the secret is a file'(a, say) {
    for (const c of a.containers) {
      for (const v of c.variables) if (v.from?.secretKeyRef || /^pen1:/.test(v.value ?? '')) say(c.where, `${v.name} holds a secret`);
      for (const name of ['PENSTOCK_SECRET_FILE', ...(c.role === 'worker' ? [] : ['PENSTOCK_HTTP_TOKEN_FILE'])]) {
        const file = c.env[name]?.value, v = file && c.volume(file);
        if (!v?.secret) say(c.where, `${name} is no file of a Secret`);
        else if ((v.secret.defaultMode ?? 0o644) & 0o007) say(c.where, `${name} can be read by all`);
      }
      if (c.env.PENSTOCK_ENCRYPTION?.value === 'clear') say(c.where, 'traffic is in clear text');
    }
  },
  'folders are volumes'(a, say) {
    for (const c of a.containers) {
      for (const name of ['PENSTOCK_STATE', 'PENSTOCK_STORE', 'PENSTOCK_OFFLOAD_PATH']) {
        const folder = c.env[name]?.value;
        if (folder !== undefined && !c.volume(folder, true)) say(c.where, `${name}=${folder} cannot be written`);
      }
      if (!c.volume('/tmp', true)) say(c.where, '/tmp cannot be written');
      const claims = (c.pod.owner.spec.volumeClaimTemplates ?? []).map((t) => t.metadata.name);
      for (const m of c.volumeMounts ?? [])
        if (!claims.includes(m.name) && !c.pod.spec.volumes?.some((v) => v.name === m.name)) say(c.where, `there is no volume ${m.name}`);
      for (const v of c.pod.spec.volumes ?? []) {
        const claim = v.persistentVolumeClaim?.claimName;
        if (claim && !a.of('PersistentVolumeClaim').some((d) => d.metadata.name === claim)) say(c.where, `there is no claim ${claim}`);
      }
    }
  },
  'jobs end by themselves'(a, say) {
    for (const p of a.pods) {
      if (!p.job) continue;
      const policy = p.job.podFailurePolicy?.rules ?? [];
      if (p.spec.restartPolicy !== 'Never') say(p.where, 'a failure policy needs restartPolicy Never');
      if (!policy.some((r) => r.action === 'FailJob' && r.onExitCodes?.values?.includes(2))) say(p.where, 'is started again after a wrong flag');
      if (!policy.some((r) => r.action === 'Ignore' && r.onPodConditions?.some((c) => c.type === 'DisruptionTarget'))) say(p.where, 'counts an eviction as a failure');
      for (const r of policy) if (r.onExitCodes && !p.spec.containers.some((c) => c.name === r.onExitCodes.containerName)) say(p.where, `there is no container ${r.onExitCodes.containerName}`);
    }
  },
  'monitors select services'(a, say) {
    for (const m of a.of('ServiceMonitor'))
      for (const e of m.spec.endpoints ?? []) {
        const chosen = a.of('Service').filter((s) => matches(m.spec.selector, s.metadata.labels ?? {}));
        if (!chosen.length || !chosen.every((s) => s.spec.ports.some((p) => p.name === e.port))) say(title(m), `finds no port ${e.port}`);
        if (!e.authorization?.credentials) say(title(m), 'has no token');
      }
  },
  'namespaces are restricted'(a, say) {
    for (const n of a.of('Namespace')) if (n.metadata.labels?.['pod-security.kubernetes.io/enforce'] !== 'restricted') say(title(n), 'lets any pod in');
  },
};

function look(docs, settings) {
  const a = { docs, readable: settings, pods: pods(docs), of: (kind) => docs.filter((d) => d.kind === kind), runtime: docs.some((d) => d.kind.endsWith('TrainingRuntime')) };
  a.containers = a.pods.flatMap((pod) =>
    [...(pod.spec.initContainers ?? []), ...pod.spec.containers].map((c) => {
      const all = variables(docs, c), env = {};
      for (const v of all) env[v.name] = v;
      const claims = pod.owner.spec.volumeClaimTemplates ?? [];
      const volume = (path, write) => {
        const m = (c.volumeMounts ?? []).find((x) => path === x.mountPath || path.startsWith(x.mountPath + '/'));
        if (!m || (write && m.readOnly)) return undefined;
        return pod.spec.volumes?.find((v) => v.name === m.name) ?? claims.find((t) => t.metadata.name === m.name);
      };
      return { ...c, pod, where: `${pod.where} ${c.name}`, role: role(c), variables: all, own: c.env ?? [], env, volume };
    }));
  return a;
}

// [{rule, where, text}]
export function violations(docs, settings) {
  const found = [];
  const a = look(docs, settings);
  if (!a.pods.length) found.push({ rule: 'pods', where: 'manifests', text: 'start nothing' });
  for (const [rule, check] of Object.entries(rules)) check(a, (where, text) => found.push({ rule, where, text }));
  return found;
}
export const ruleNames = Object.keys(rules);

if (process.argv[1].endsWith('policy.mjs')) {
  const settings = readable(fs.readFileSync(process.argv[2], 'utf8'));
  let bad = 0;
  for (const file of process.argv.slice(3)) {
    const found = violations(read(file), settings);
    for (const v of found) console.log(`${file}: ${v.where}: ${v.text}  (${v.rule})`);
    bad += found.length;
  }
  console.log(`${ruleNames.length} rules, ${bad} violations`);
  process.exit(bad ? 1 : 0);
}

// planted.mjs - plants each mistake into good manifests; its rule must find it:  node planted.mjs SETTINGS.md FILE
// FILE is the dev overlay with the components monitoring and volcano.
import fs from 'fs';
import { read } from './manifests.mjs';
import { readable, ruleNames, violations } from './policy.mjs';

const settings = readable(fs.readFileSync(process.argv[2], 'utf8'));
const fresh = () => read(process.argv[3]);
const of = (docs, kind, name) => docs.find((d) => d.kind === kind && (!name || d.metadata.name === name));
const pod = (docs, kind, name) => of(docs, kind, name).spec.template.spec;
const server = (docs) => pod(docs, 'StatefulSet', 'penstock-server');
const worker = (docs) => pod(docs, 'Job', 'penstock-worker');
const first = (spec) => spec.containers[0];
const env = (spec, name) => first(spec).env.find((e) => e.name === name);
const without = (spec, name) => { first(spec).env = first(spec).env.filter((e) => e.name !== name); };

// [mistake, the rule that must find it, the change that plants it]
const planted = [
  ['latest tag', 'image is pinned', (d) => { first(server(d)).image = 'penstock:latest'; }],
  ['no tag', 'image is pinned', (d) => { first(worker(d)).image = 'penstock-demo'; }],
  ['root user of the pod', 'no root', (d) => { server(d).securityContext.runAsUser = 0; }],
  ['root user of the container', 'no root', (d) => { first(worker(d)).securityContext.runAsUser = 0; }],
  ['runAsNonRoot missing', 'no root', (d) => { delete worker(d).securityContext.runAsNonRoot; }],
  ['seccomp missing', 'seccomp', (d) => { delete worker(d).securityContext.seccompProfile; }],
  ['seccomp unconfined', 'seccomp', (d) => { first(server(d)).securityContext.seccompProfile = { type: 'Unconfined' }; }],
  ['privileged', 'no privileges', (d) => { first(server(d)).securityContext.privileged = true; }],
  ['privilege escalation', 'no privileges', (d) => { delete first(server(d)).securityContext.allowPrivilegeEscalation; }],
  ['capabilities kept', 'no privileges', (d) => { delete first(worker(d)).securityContext.capabilities; }],
  ['capability added', 'no privileges', (d) => { first(worker(d)).securityContext.capabilities.add = ['IPC_LOCK']; }],
  ['writable root', 'root file system is read-only', (d) => { first(server(d)).securityContext.readOnlyRootFilesystem = false; }],
  ['host network', 'nothing of the host', (d) => { worker(d).hostNetwork = true; }],
  ['host path', 'nothing of the host', (d) => { worker(d).volumes.push({ name: 'disk', hostPath: { path: '/' } }); }],
  ['host port', 'nothing of the host', (d) => { first(server(d)).ports[0].hostPort = 9464; }],
  ['token of the API server', 'no token of the API server', (d) => { delete server(d).automountServiceAccountToken; }],
  ['links to services', 'no links to services', (d) => { delete worker(d).enableServiceLinks; }],
  ['no limits', 'requests and limits', (d) => { delete first(worker(d)).resources.limits; }],
  ['no requests', 'requests and limits', (d) => { delete first(server(d)).resources; }],
  ['memory overcommitted', 'requests and limits', (d) => { first(server(d)).resources.limits.memory = '8Gi'; }],
  ['missing readiness probe', 'probes', (d) => { delete first(server(d)).readinessProbe; }],
  ['missing liveness probe', 'probes', (d) => { delete first(server(d)).livenessProbe; }],
  ['probe of another path', 'probes', (d) => { first(server(d)).readinessProbe.httpGet.path = '/ready'; }],
  ['probe of a port that is not there', 'probes', (d) => { first(server(d)).livenessProbe.httpGet.port = 'metrics'; }],
  ['HTTP elsewhere than the probes ask', 'probes', (d) => { env(server(d), 'PENSTOCK_HTTP').value = '0.0.0.0:8080'; }],
  ['service that selects nothing', 'services select pods and name their ports', (d) => { of(d, 'Service', 'penstock-server').spec.selector['app.kubernetes.io/component'] = 'ps'; }],
  ['service with a port that is not there', 'services select pods and name their ports', (d) => { of(d, 'Service', 'penstock-scheduler').spec.ports[0].targetPort = 'zmq'; }],
  ['stateful set without its service', 'stateful sets have a headless service', (d) => { of(d, 'StatefulSet', 'penstock-server').spec.serviceName = 'servers'; }],
  ['names only of ready pods', 'stateful sets have a headless service', (d) => { delete of(d, 'Service', 'penstock-server').spec.publishNotReadyAddresses; }],
  ['selector of other pods', 'stateful sets have a headless service', (d) => { of(d, 'StatefulSet', 'penstock-server').spec.selector.matchLabels = { app: 'x' }; }],
  ['budget that selects nothing', 'budgets select pods', (d) => { of(d, 'PodDisruptionBudget').spec.selector.matchLabels['app.kubernetes.io/component'] = 'ps'; }],
  ['budget that lets two go', 'budgets select pods', (d) => { of(d, 'PodDisruptionBudget').spec.maxUnavailable = 2; }],
  ['no budget', 'budgets select pods', (d) => d.filter((x) => x.kind !== 'PodDisruptionBudget')],
  ['no network policy', 'network is closed', (d) => d.filter((x) => x.kind !== 'NetworkPolicy')],
  ['open network: no peers', 'network is closed', (d) => { of(d, 'NetworkPolicy').spec.ingress = [{}]; }],
  ['open network: all namespaces', 'network is closed', (d) => { of(d, 'NetworkPolicy').spec.ingress[0].from = [{ namespaceSelector: {} }]; }],
  ['open network: any address', 'network is closed', (d) => { of(d, 'NetworkPolicy').spec.egress.push({ to: [{ ipBlock: { cidr: '0.0.0.0/0' } }] }); }],
  ['egress not named', 'network is closed', (d) => { of(d, 'NetworkPolicy').spec.policyTypes = ['Ingress']; }],
  ['variable the binary does not read', 'variables are read', (d) => { first(server(d)).env.push({ name: 'PENSTOCK_SHARD', value: '2' }); }],
  ['setting of another role', 'variables are read', (d) => { first(server(d)).env.push({ name: 'PENSTOCK_SNAPSHOT_EVERY', value: '2' }); }],
  ['unknown setting in the ConfigMap', 'variables are read', (d) => { of(d, 'ConfigMap').data.PENSTOCK_REPLICA = '1'; }],
  ['variable used before it is there', 'variables are read', (d) => { first(server(d)).env.push(first(server(d)).env.shift()); }],
  ['ConfigMap that is not there', 'variables are read', (d) => { first(server(d)).envFrom[0].configMapRef.name = 'settings'; }],
  ['more servers than the job knows', 'numbers agree', (d) => { of(d, 'StatefulSet', 'penstock-server').spec.replicas = 3; }],
  ['more pods than the job knows', 'numbers agree', (d) => { of(d, 'Job').spec.parallelism = 2; }],
  ['workers that the job does not know', 'numbers agree', (d) => { of(d, 'ConfigMap').data.PET_NPROC_PER_NODE = '3'; }],
  ['a GPU for two workers', 'numbers agree', (d) => { first(worker(d)).resources.limits['nvidia.com/gpu'] = '1'; }],
  ['as many copies as servers', 'numbers agree', (d) => { of(d, 'ConfigMap').data.PENSTOCK_REPLICAS = '2'; }],
  ['gang without a member', 'numbers agree', (d) => { of(d, 'PodGroup').spec.minMember = 3; }],
  ['scheduler by a wrong name', 'members find the scheduler', (d) => { env(worker(d), 'PENSTOCK_MASTER_ADDR').value = 'scheduler'; }],
  ['scheduler at a wrong port', 'members find the scheduler', (d) => { env(server(d), 'PENSTOCK_MASTER_PORT').value = '29400'; }],
  ['a scheduler in rank 0', 'members find the scheduler', (d) => { without(worker(d), 'PENSTOCK_SCHEDULER'); }],
  ['the same rank for all workers', 'ranks come from the index', (d) => { const e = env(worker(d), 'PET_NODE_RANK'); delete e.valueFrom; e.value = '0'; }],
  ['servers without a rank', 'ranks come from the index', (d) => { without(server(d), 'PENSTOCK_RANK'); }],
  ['servers under one name', 'ranks come from the index', (d) => { env(server(d), 'PENSTOCK_HOST').value = 'penstock-server'; }],
  ['no /dev/shm', 'shared memory has a size', (d) => { first(worker(d)).volumeMounts = first(worker(d)).volumeMounts.filter((m) => m.name !== 'shm'); }],
  ['/dev/shm without a size', 'shared memory has a size', (d) => { delete worker(d).volumes.find((v) => v.name === 'shm').emptyDir.sizeLimit; }],
  ['no drain', 'servers are drained', (d) => { delete first(server(d)).lifecycle; }],
  ['grace shorter than the drain', 'servers are drained', (d) => { server(d).terminationGracePeriodSeconds = 30; }],
  ['program as process 1', 'workers hear SIGTERM', (d) => { first(worker(d)).command = ['fashion_mnist']; }],
  ['secret in the environment', 'the secret is a file', (d) => { first(worker(d)).env.push({ name: 'PENSTOCK_JOB', valueFrom: { secretKeyRef: { name: 'penstock-secret', key: 'secret' } } }); }],
  ['secret that all can read', 'the secret is a file', (d) => { worker(d).volumes.find((v) => v.secret).secret.defaultMode = 0o444; }],
  ['secret not mounted', 'the secret is a file', (d) => { first(worker(d)).volumeMounts = first(worker(d)).volumeMounts.filter((m) => m.name !== 'secret'); }],
  ['clear text', 'the secret is a file', (d) => { of(d, 'ConfigMap').data.PENSTOCK_ENCRYPTION = 'clear'; }],
  ['state on the root', 'folders are volumes', (d) => { env(pod(d, 'StatefulSet', 'penstock-scheduler'), 'PENSTOCK_STATE').value = '/var/state'; }],
  ['store read-only', 'folders are volumes', (d) => { first(server(d)).volumeMounts.find((m) => m.name === 'store').readOnly = true; }],
  ['claim that is not there', 'folders are volumes', (d) => d.filter((x) => x.kind !== 'PersistentVolumeClaim')],
  ['restarts beside a failure policy', 'jobs end by themselves', (d) => { worker(d).restartPolicy = 'OnFailure'; }],
  ['wrong flags tried again', 'jobs end by themselves', (d) => { of(d, 'Job').spec.podFailurePolicy.rules.shift(); }],
  ['evictions counted', 'jobs end by themselves', (d) => { of(d, 'Job').spec.podFailurePolicy.rules.pop(); }],
  ['monitor of a port that is not there', 'monitors select services', (d) => { of(d, 'ServiceMonitor').spec.endpoints[0].port = 'metrics'; }],
  ['monitor without a token', 'monitors select services', (d) => { delete of(d, 'ServiceMonitor').spec.endpoints[0].authorization; }],
  ['namespace of any pods', 'namespaces are restricted', (d) => { of(d, 'Namespace').metadata.labels['pod-security.kubernetes.io/enforce'] = 'privileged'; }],
];

let bad = 0;
const mistake = (text) => { bad++; console.log(text); };
const clean = violations(fresh(), settings);
for (const v of clean) mistake(`before anything is planted: ${v.where}: ${v.text}  (${v.rule})`);
for (const [what, rule, plant] of planted) {
  const docs = fresh();
  const found = violations(plant(docs) ?? docs, settings);
  if (!found.some((v) => v.rule === rule)) mistake(`not found: ${what}  (${rule}); found ${JSON.stringify(found.map((v) => v.rule))}`);
}
for (const rule of ruleNames) if (!planted.some((p) => p[1] === rule)) mistake(`no mistake is planted for: ${rule}`);
console.log(`${planted.length} mistakes planted, ${bad} wrong`);
process.exit(bad ? 1 : 0);

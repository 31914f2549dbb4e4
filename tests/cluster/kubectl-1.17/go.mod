// kubectl 1.17, the last one with rolling-update: a peer to compare with (tests/faults), of no use to the cluster.
module baton.test/cluster/kubectl-1.17

go 1.16

require k8s.io/kubernetes v1.17.17

replace (
	golang.org/x/sys => golang.org/x/sys v0.30.0
	k8s.io/api => k8s.io/api v0.17.17
	k8s.io/apiextensions-apiserver => k8s.io/apiextensions-apiserver v0.17.17
	k8s.io/apimachinery => k8s.io/apimachinery v0.17.17
	k8s.io/apiserver => k8s.io/apiserver v0.17.17
	k8s.io/cli-runtime => k8s.io/cli-runtime v0.17.17
	k8s.io/client-go => k8s.io/client-go v0.17.17
	k8s.io/cloud-provider => k8s.io/cloud-provider v0.17.17
	k8s.io/cluster-bootstrap => k8s.io/cluster-bootstrap v0.17.17
	k8s.io/code-generator => k8s.io/code-generator v0.17.17
	k8s.io/component-base => k8s.io/component-base v0.17.17
	k8s.io/cri-api => k8s.io/cri-api v0.17.17
	k8s.io/csi-translation-lib => k8s.io/csi-translation-lib v0.17.17
	k8s.io/kube-aggregator => k8s.io/kube-aggregator v0.17.17
	k8s.io/kube-controller-manager => k8s.io/kube-controller-manager v0.17.17
	k8s.io/kube-proxy => k8s.io/kube-proxy v0.17.17
	k8s.io/kube-scheduler => k8s.io/kube-scheduler v0.17.17
	k8s.io/kubectl => k8s.io/kubectl v0.17.17
	k8s.io/kubelet => k8s.io/kubelet v0.17.17
	k8s.io/legacy-cloud-providers => k8s.io/legacy-cloud-providers v0.17.17
	k8s.io/metrics => k8s.io/metrics v0.17.17
	k8s.io/sample-apiserver => k8s.io/sample-apiserver v0.17.17
	vbom.ml/util => github.com/fvbommel/util v0.0.0-20160121211510-db5cfe13f5cc
)

// Every program of the embedded cluster in one file: it acts as the one it is called as (its name, or its first word).
//
// One binary because the components share most of their code: one link instead of seven.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlerrors "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func serve(command func() *cobra.Command) func() {
	return func() { os.Exit(cli.Run(command())) }
}

var applets = map[string]func(){
	"kube-apiserver":          serve(apiserver.NewAPIServerCommand),
	"kube-controller-manager": serve(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          serve(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 serve(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kube-proxy":              serve(kubeproxy.NewProxyCommand),
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kubectl":                 runKubectl,
	"device-plugin":           runDevicePlugin,
}

func runKubectl() {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlerrors.CheckErr(err)
	}
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, known := applets[name]; !known && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	run, known := applets[name]
	if !known {
		known := slices.Sorted(maps.Keys(applets))
		fmt.Fprintf(os.Stderr, "no program called %q here; there are: %s\n", name, strings.Join(known, ", "))
		os.Exit(64)
	}
	run()
}

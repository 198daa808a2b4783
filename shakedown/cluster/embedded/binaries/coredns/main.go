// CoreDNS with the plugins that a cluster's DNS needs, and no others.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

// The order is that of a query through the chain of plugins.
func init() {
	dnsserver.Directives = []string{"reload", "health", "ready", "errors", "cache", "kubernetes"}
}

func main() { coremain.Run() }

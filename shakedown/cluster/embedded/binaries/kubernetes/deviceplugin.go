package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// devicePlugin advertises simulated GPUs to the kubelet over the protocol that NVIDIA's plugin uses.
// A device is unhealthy while its id stands on a line of the file `unhealthy`.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	resource  string
	ids       []string
	unhealthy string

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, at each change of health
}

func (p *devicePlugin) devices() []*pluginapi.Device {
	ill := map[string]bool{}
	if file, err := os.Open(p.unhealthy); err == nil {
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			ill[strings.TrimSpace(lines.Text())] = true
		}
	}
	devices := make([]*pluginapi.Device, 0, len(p.ids))
	for _, id := range p.ids {
		health := pluginapi.Healthy
		if ill[id] {
			health = pluginapi.Unhealthy
		}
		devices = append(devices, &pluginapi.Device{ID: id, Health: health})
	}
	return devices
}

func (p *devicePlugin) healthChanged() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *devicePlugin) nextChange() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	for {
		next := p.nextChange()
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: p.devices()}); err != nil {
			return err
		}
		select {
		case <-next:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *devicePlugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

func (p *devicePlugin) register(directory, endpoint string) error {
	connection, err := grpc.NewClient(
		"unix://"+filepath.Join(directory, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(connection).Register(limit, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: p.resource,
	})
	return err
}

// identity tells one kubelet socket from the next under the same name; nil when there is none.
func identity(socket string) os.FileInfo {
	info, err := os.Stat(socket)
	if err != nil {
		return nil
	}
	return info
}

// session serves and registers once; it returns when the kubelet made its socket anew, or at an error.
func (p *devicePlugin) session(directory, endpoint string, events <-chan fsnotify.Event, ended <-chan os.Signal) (bool, error) {
	socket := filepath.Join(directory, endpoint)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return false, err
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	kubelet := filepath.Join(directory, "kubelet.sock")
	registered := identity(kubelet)
	if err := p.register(directory, endpoint); err != nil {
		return false, fmt.Errorf("registering %s: %w", p.resource, err)
	}
	log.Printf("registered %s with %d devices", p.resource, len(p.ids))
	for {
		select {
		case event := <-events:
			switch {
			case event.Name == kubelet && event.Has(fsnotify.Create):
				// The event of the very socket that we registered at may come only now. Registering a second time
				// would end the first connection under the kubelet, which then drops the resource.
				if now := identity(kubelet); registered != nil && now != nil && os.SameFile(registered, now) {
					continue
				}
				log.Print("the kubelet started anew")
				return false, nil
			case event.Name == p.unhealthy:
				p.healthChanged()
			}
		case <-ended:
			return true, nil
		}
	}
}

func runDevicePlugin() {
	options := flag.NewFlagSet("device-plugin", flag.ExitOnError)
	resource := options.String("resource", "nvidia.com/gpu", "extended resource to advertise")
	ids := options.String("devices", "", "comma-separated device ids")
	unhealthy := options.String("unhealthy", "", "file that lists the ids of unhealthy devices, one per line")
	directory := options.String("directory", pluginapi.DevicePluginPath, "the kubelet's directory of plugin sockets")
	_ = options.Parse(os.Args[1:])
	plugin := &devicePlugin{
		resource: *resource, ids: strings.FieldsFunc(*ids, func(r rune) bool { return r == ',' }),
		unhealthy: filepath.Clean(*unhealthy), changed: make(chan struct{}),
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Fatal(err)
	}
	for _, watched := range []string{filepath.Clean(*directory), filepath.Dir(plugin.unhealthy)} {
		if err := watcher.Add(watched); err != nil {
			log.Fatalf("watching %s: %v", watched, err)
		}
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	endpoint := strings.ReplaceAll(*resource, "/", "-") + ".sock"
	for {
		done, err := plugin.session(filepath.Clean(*directory), endpoint, watcher.Events, ended)
		if done {
			return
		}
		if err != nil {
			log.Print(err)
			select {
			case <-time.After(250 * time.Millisecond):
			case <-ended:
				return
			}
		}
	}
}

package command

import (
	"context"
	"fmt"

	"golang.org/x/sys/windows/svc"
	"k8s.io/klog/v2"
)

// serviceName is the name that Kubernetes' own kube-proxy uses; it has no effect for a service with its own process.
const serviceName = "kube-proxy"

// runAsService runs a function under the service control manager, until that stops the service.
func runAsService(ctx context.Context, run func(context.Context) error) error {
	s := &service{ctx: ctx, run: run}
	if err := svc.Run(serviceName, s); err != nil {
		return fmt.Errorf("--windows-service: %w", err)
	}
	return s.err
}

type service struct {
	ctx context.Context
	run func(context.Context) error
	err error
}

// Execute implements svc.Handler.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	ctx, end := context.WithCancel(s.ctx)
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	const accepts = svc.AcceptStop | svc.AcceptShutdown
	status <- svc.Status{State: svc.Running, Accepts: accepts}
	for {
		select {
		case s.err = <-ended:
			status <- svc.Status{State: svc.StopPending}
			if s.err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(s.err, "The Windows service is stopping")
				return false, 1
			}
			s.err = nil // the stop was requested
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending}
				end()
			}
		}
	}
}

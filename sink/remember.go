package sink

import "sigs.k8s.io/kube-proxy-lib/model"

// ServiceMemory is a [Forward] that remembers some services. See [RememberServices].
type ServiceMemory struct {
	// Forward passes every call on to the next sink.
	*Forward
	services map[model.ServiceName]*model.Service
	keep     func(*model.Service) bool
	changed  func(model.ServiceName)
}

// RememberServices returns a ServiceMemory for middleware to embed instead of a [Forward]. It stores the last value of
// each service for which keep returns true in services. It calls changed when such a service is set, is deleted, or is
// no longer kept.
func RememberServices(next Sink, services map[model.ServiceName]*model.Service, keep func(*model.Service) bool,
	changed func(model.ServiceName)) *ServiceMemory {
	return &ServiceMemory{Forward: NewForward(next), services: services, keep: keep, changed: changed}
}

// SetService implements [Sink].
func (m *ServiceMemory) SetService(service *model.Service) {
	m.Forward.SetService(service)
	if service == nil {
		return
	}
	if !m.keep(service) {
		m.forget(service.Name)
		return
	}
	m.services[service.Name] = service
	m.changed(service.Name)
}

// DeleteService implements [Sink].
func (m *ServiceMemory) DeleteService(name model.ServiceName) {
	m.Forward.DeleteService(name)
	m.forget(name)
}

func (m *ServiceMemory) forget(name model.ServiceName) {
	if m.services[name] != nil {
		delete(m.services, name)
		m.changed(name)
	}
}

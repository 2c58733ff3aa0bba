package sink

import (
	"errors"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// FamilyError is an error from Sync that concerns only one IP family: the other family is applied. Sync may join
// several with errors.Join. Any other error, except [PortError], counts against both families.
type FamilyError struct {
	// Family is the family that is not applied. Any other value counts as both.
	Family model.Family
	// Err is the cause. If it consists only of PortErrors, the family counts as applied.
	Err error
}

// Error returns the family and the cause.
func (e *FamilyError) Error() string { return e.Family.String() + ": " + causeText(e.Err) }

// Unwrap returns Err.
func (e *FamilyError) Unwrap() error { return e.Err }

// PortError is an error from Sync that concerns only one service port in one IP family: everything else is applied.
// Sync may join several with errors.Join, and with other errors. A Sync that fails only with PortErrors counts as
// successful for health, metrics and the clean-up that follows. The ports are retried later.
//
// No error may change after Sync has returned it. An error with the same pointer as in the previous Sync
// counts as the same failure and is not examined again: return the same one while thousands of ports fail unchanged.
type PortError struct {
	// Port and Family say what is not applied.
	Port   model.PortName
	Family model.Family
	// Err is the cause. It needs neither the port nor the family in its text.
	Err error
	// ServesExternal: outside clients can still reach the port, because the dataplane serves its node port, or one of its
	// VIPs or external IPs, perhaps as before the change. A Service fails its health check if none of its ports is served
	// to outside clients (S38).
	ServesExternal bool
}

// Error returns the service port, the family and the cause.
func (e *PortError) Error() string {
	return fmt.Sprintf("service port %v (%v): %s", e.Port, e.Family, causeText(e.Err))
}

// Unwrap returns Err.
func (e *PortError) Unwrap() error { return e.Err }

// PermanentError is an error from Sync that no retry can fix, such as a kernel without a feature that the sink needs.
// Run returns it. Inside a [PortError] it has no such effect.
type PermanentError struct {
	// Err is the cause. It should tell the operator what to change.
	Err error
}

// Error returns the cause.
func (e *PermanentError) Error() string { return causeText(e.Err) }

// Unwrap returns Err.
func (e *PermanentError) Unwrap() error { return e.Err }

// causeText returns the text of a cause, which a sink may have left out.
func causeText(cause error) string {
	if cause == nil {
		return "the sink names no cause"
	}
	return cause.Error()
}

// FailedFamilies returns the families that an error from Sync concerns as a whole. Errors of single service ports do
// not count, see [PortError].
func FailedFamilies(err error) (failed model.FamilySet) {
	walk(err, func(e error) bool {
		switch e := e.(type) { //nolint:errorlint // walk unwraps
		case *PortError:
			return false
		case *FamilyError:
			switch {
			case e.Err != nil && FailedFamilies(e.Err) == 0: // it consists of PortErrors
			case e.Family == model.IPv4, e.Family == model.IPv6:
				failed |= e.Family.Set()
			default:
				failed = model.BothFamilies
			}
			return false
		}
		if isLeaf(e) {
			failed = model.BothFamilies
		}
		return true
	})
	return failed
}

// PortErrors returns the errors of single service ports in an error from Sync, in their order.
func PortErrors(err error) []*PortError {
	var found []*PortError
	walk(err, func(e error) bool {
		port, ok := e.(*PortError) //nolint:errorlint // walk unwraps
		if ok {
			found = append(found, port)
		}
		return !ok
	})
	return found
}

// Permanent returns the [PermanentError] in an error from Sync, or nil. It ignores those in a [PortError].
func Permanent(err error) *PermanentError {
	var found *PermanentError
	walk(err, func(e error) bool {
		if p, ok := e.(*PermanentError); ok && found == nil { //nolint:errorlint // walk unwraps
			found = p
		}
		_, port := e.(*PortError) //nolint:errorlint // walk unwraps
		return !port
	})
	return found
}

// walk visits an error and everything that it wraps. It skips the inside of errors for which visit returns false.
func walk(err error, visit func(error) (inside bool)) {
	if err == nil || !visit(err) {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			walk(e, visit)
		}
		return
	}
	walk(errors.Unwrap(err), visit)
}

// isLeaf reports whether an error wraps no other.
func isLeaf(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return len(joined.Unwrap()) == 0
	}
	return errors.Unwrap(err) == nil
}

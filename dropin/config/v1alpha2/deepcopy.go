package v1alpha2

import "k8s.io/apimachinery/pkg/runtime"

// DeepCopy returns a copy that shares nothing with c.
func (c *KubeProxyConfiguration) DeepCopy() *KubeProxyConfiguration {
	if c == nil {
		return nil
	}
	// The conversion to the fields of a file cannot fail for this type.
	fields, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
	out := &KubeProxyConfiguration{}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, out)
	c.Logging.DeepCopyInto(&out.Logging) // the conversion changes the form of quantities
	return out
}

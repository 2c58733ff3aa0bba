package dropin

// modes returns the modes of this system.
func modes() []mode { return []mode{kernelspace()} }

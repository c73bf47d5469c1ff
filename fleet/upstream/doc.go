// Package upstream keeps the voice servers that devices talk to: which device uses which,
// with which secret, and how the servers are doing. It opens no connection; package
// broker/voice does.
//
// [Service.Run] reads the table again on one goroutine; readers see one version of it.
package upstream

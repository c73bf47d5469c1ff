// Package upstream manages the voice servers that devices talk to: the devices that use each
// server, its secret, and its health. It opens no connection; package broker/voice does.
//
// [Service.Run] reloads the table on one goroutine; readers see one version of it.
package upstream

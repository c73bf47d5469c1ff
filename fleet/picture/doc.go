// Package picture moves pictures between devices and fleetd: snapshots that devices
// upload, previews that devices show, and questions about camera pictures. One-time links
// and bearer tokens tie a request without a name to a device and its call.
//
// Decoding is bounded in memory and runs on the goroutine of its request. The package
// holds no locks beyond those of the services it uses.
package picture

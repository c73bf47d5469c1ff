// Package picture exchanges pictures with devices: snapshots that devices upload, previews
// that devices show, and camera pictures that answer questions. One-time links and bearer
// tokens identify the device and its call.
//
// Decoding is bounded in memory and runs on the goroutine of its request. The package has no
// locks beyond those of the services that it uses.
package picture

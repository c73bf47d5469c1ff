// Package telemetry stores the unsolicited reports of devices: vitals, the progress of their
// jobs, the configuration they apply, log lines and core dumps.
//
// A report is untrusted: it is bounded, counted and cleaned where it is read. The package does
// not depend on firmware or campaigns; the name of a job links it to its deployment. [Reports],
// [Logs] and [CoreDumps] have one Run each, which also runs the goroutines of their buffers.
// Any goroutine may call their other methods.
package telemetry

// Package telemetry keeps what devices report without being asked: vitals, the
// progress of their jobs, the configuration they apply, log lines and core
// dumps.
//
// A report is untrusted: bounded, counted and cleaned where it is read. It
// knows neither firmware nor campaigns; a job that belongs to a deployment is
// linked by its name. [Reports], [Logs] and [CoreDumps] have one Run each, with
// goroutines of their buffers; their other methods may be called from any.
package telemetry

// Package call makes calls of tools: a request passes the gate, gets a record, waits for
// its turn in the device's line, is sent at most once, and ends in an outcome that is on
// record. [Service.Make] and [Service.Start] take one call through this path,
// [FanOuts] one call for each of many devices; [Approvals] are what people decide about
// calls that a policy does not simply allow.
//
// It knows neither MQTT nor SQL: a [fleet.Link] delivers, a [Store] keeps, a [Policy]
// judges. Each call that waits or was sent has one goroutine; a fan-out has a bounded
// number of them. Locks guard the calls that wait, the calls that run, and small caches.
package call

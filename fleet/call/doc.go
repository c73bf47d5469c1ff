// Package call makes tool calls. A request passes the gate, gets a record, waits for its turn
// in the device's line, is sent at most once, and ends in a recorded outcome. [Service.Make]
// and [Service.Start] make one call, and [FanOuts] makes one call to each of many devices. With
// [Approvals] people decide about calls for which a policy requires an approval.
//
// The package depends on neither MQTT nor SQL: a [fleet.Link] delivers calls, a [Store] stores
// them, and a [Policy] judges them. Each call that waits or was sent has one goroutine; a fan-out
// has a limited number of them. Locks guard the waiting calls, the running calls, and small caches.
package call

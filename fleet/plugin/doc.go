// Package plugin describes plug-ins: MCP servers that fleetd runs as programs, or reaches by
// URL, and that are devices of the fleet with the id plugin.NAME.
//
// A plug-in is defined by a manifest: a file NAME.yaml in the plug-in directory, or a row of the
// database that an administrator made through the console or REST. [Service] reads both, and a
// [Runner] runs what they define. Whoever can write to the directory decides which programs run:
// a manifest of the database may only name files in that directory.
//
// The package starts no program and speaks no MCP. [Service.Run] reads the directory on one
// goroutine.
package plugin

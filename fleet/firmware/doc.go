// Package firmware keeps images and releases: what an image says about itself,
// which device it fits, how a release is signed and withdrawn, how its bytes
// are downloaded over one-time links, and how they lie in the flash of a blank
// board.
//
// It does not know campaigns: [Options] asks for the devices that something
// else keeps. An image's bytes are read by package espimage and stored by
// their SHA-256. One lock keeps an upload and a deletion apart, another the
// downloads in progress; there is no goroutine.
package firmware

// Package firmware manages images and releases: what an image contains, which devices it fits,
// how a release is signed and revoked, how its bytes are downloaded over one-time links, and
// how they are laid out in the flash of a blank board.
//
// It does not depend on campaigns: [Options] supplies the devices that another package makes
// unavailable. Package espimage parses an image's bytes; the blob store keys them by SHA-256.
// One lock separates an upload from a deletion, another guards the downloads in progress. The
// package starts no goroutine.
package firmware

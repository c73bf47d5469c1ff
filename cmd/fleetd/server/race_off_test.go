//go:build !race

package server

const campaignDevices = 10_000

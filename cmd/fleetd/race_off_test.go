//go:build !race

package main

const campaignDevices = 10_000

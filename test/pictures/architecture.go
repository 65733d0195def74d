package main

// architecture draws who talks to whom: everything goes through the API server but the data.
func architecture(string) ([]byte, error) {
	c := newCanvas(920, 520)
	c.box(point{30, 20}, 860, 62, yellow, "Kubernetes API server",
		"PodVolumeBackup, PodVolumeRestore, DataUpload, DataDownload, BackupRepository",
		"pods, claims, volumes, snapshots, Jobs, Events, Lease lateen-coordinator")
	c.box(point{30, 180}, 170, 74, grey, "Velero server", "one resource", "for each volume")
	c.arrow(point{115, 180}, point{115, 82})
	c.text(point{122, 120}, "start", small, "creates resources,")
	c.text(point{122, 135}, "start", small, "waits for phases")
	drawNode(c, 250, "Node 1", []string{"Lateen agent", "one queue for each kind;", "holds the Lease: coordinator"})
	drawNode(c, 590, "Node 2", []string{"Lateen agent", "one queue for each kind", "follows its own movers"})
	c.box(point{250, 460}, 640, 44, yellow, "Backup repository", "kopia, in object storage")
	c.text(point{30, 475}, "start", small, "An agent never reads or writes")
	c.text(point{30, 490}, "start", small, "the data of a volume.")
	return c.image("Architecture: agents, mover pods and Velero's server communicate through the API server"), nil
}

// drawNode draws one node with its agent, a mover and a volume.
func drawNode(c *canvas, left int, name string, agent []string) {
	c.rect(point{left, 160}, 300, 270, plain)
	c.text(point{left + 16, 420}, "start", bold, name)
	c.box(point{left + 16, 180}, 176, 74, blue, agent...)
	c.both(point{left + 40, 180}, point{left + 40, 82})
	c.text(point{left + 48, 105}, "start", small, "watches; patches status;")
	c.text(point{left + 48, 120}, "start", small, "creates and deletes pods,")
	c.text(point{left + 48, 135}, "start", small, "claims and snapshots")
	c.box(point{left + 16, 320}, 206, 60, green, "Mover pod", "velero pod-volume …", "velero data-mover …")
	c.arrow(point{left + 208, 320}, point{left + 208, 82})
	c.text(point{left + 216, 285}, "start", small, "Events,")
	c.text(point{left + 216, 300}, "start", small, "exit message")
	c.both(point{left + 115, 380}, point{left + 115, 460})
	c.text(point{left + 122, 450}, "start", small, "data")
	c.box(point{left + 240, 325}, 54, 50, grey, "Volume")
	c.both(point{left + 222, 350}, point{left + 240, 350})
}

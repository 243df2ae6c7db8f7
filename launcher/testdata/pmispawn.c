/* Spawns processes, and publishes the name of a service, by the PMI-1 client of MPICH. */
#include <stdio.h>
#include <string.h>

typedef struct { char *key; char *val; } PMI_keyval_t;
int PMI_Init(int *spawned);
int PMI_Finalize(void);
int PMI_Get_rank(int *rank);
int PMI_Get_size(int *size);
int PMI_Get_appnum(int *appnum);
int PMI_Get_universe_size(int *size);
int PMI_Barrier(void);
int PMI_KVS_Get_my_name(char name[], int length);
int PMI_KVS_Put(const char kvs[], const char key[], const char value[]);
int PMI_KVS_Get(const char kvs[], const char key[], char value[], int length);
int PMI_Publish_name(const char service[], const char port[]);
int PMI_Unpublish_name(const char service[]);
int PMI_Lookup_name(const char service[], char port[]);
int PMI_Spawn_multiple(int count, const char *cmds[], const char **argvs[], const int maxprocs[],
                       const int info_sizes[], const PMI_keyval_t *infos[], int preput_size,
                       const PMI_keyval_t preput[], int errors[]);

static int fail(const char *what) {
  printf("%s failed\n", what);
  return 1;
}

static int spawn(const char *self, int codes[3], const char *second) {
  const char *cmds[] = {self, second};
  const char *args[] = {"two words", NULL};
  const char **argvs[] = {args, NULL};
  const int procs[] = {2, 1}, sizes[] = {1, 0};
  PMI_keyval_t info = {"unknown key", "value"}, preput = {"PORT", "the-port"};
  const PMI_keyval_t *infos[] = {&info, NULL};
  return PMI_Spawn_multiple(2, cmds, argvs, procs, sizes, infos, 1, &preput, codes);
}

int main(int argc, char **argv) {
  int spawned, rank, size, app, universe, codes[3] = {-1, -1, -1};
  char kvs[256], key[64], port[1024] = "";
  if (PMI_Init(&spawned) || PMI_Get_rank(&rank) || PMI_Get_size(&size) || PMI_Get_appnum(&app) ||
      PMI_KVS_Get_my_name(kvs, sizeof kvs))
    return fail("init");
  if (spawned) {
    sprintf(key, "key-%d", rank);
    if (PMI_KVS_Put(kvs, key, "x") || PMI_Barrier()) return fail("barrier");
    sprintf(key, "key-%d", (rank + 1) % size);
    if (PMI_KVS_Get(kvs, key, port, sizeof port) || PMI_KVS_Get(kvs, "PORT", port, sizeof port)) return fail("get");
    printf("child %d of %d app %d spawned %d port %s args%s%s\n", rank, size, app, spawned, port,
           argc > 1 ? " " : "", argc > 1 ? argv[1] : "");
    if (rank == 0) {
      char service[1024] = "";
      if (PMI_Lookup_name("service", service)) return fail("lookup");
      printf("lookup %s\n", service);
      if (PMI_Unpublish_name("service") || !PMI_Unpublish_name("service")) return fail("unpublish");
    }
    return PMI_Finalize();
  }
  if (PMI_Get_universe_size(&universe)) return fail("universe");
  if (rank == 0) {
    if (PMI_Publish_name("service", "the-service-port") || !PMI_Publish_name("service", "other")) return fail("publish");
    if (spawn(argv[0], codes, "/no/such/program")) printf("missing program refused\n");
    if (spawn(argv[0], codes, argv[0])) return fail("spawn");
    printf("parent %d of %d spawned %d universe %d codes %d %d %d\n", rank, size, spawned, universe, codes[0], codes[1], codes[2]);
  } else {
    printf("parent %d of %d spawned %d universe %d\n", rank, size, spawned, universe);
  }
  if (PMI_Barrier()) return fail("barrier");
  return PMI_Finalize();
}

// RUN: treadle-opt %s -p loop-to-upstream --print-op-generic | filecheck %s

func.func @k(%A: memref<640xf32>, %B: memref<64xi8>, %C: memref<640xf32>, %lo: index, %hi: index) attributes {operations = #loop.count<5>} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant dense<0.0> : vector<8xf32>
  %first = loop.lane_mask %c0, %hi : vector<8xi1>
  %inside = loop.lane_mask %lo, %hi : vector<8xi1>
  loop.prefetch %A at %hi : memref<640xf32>
  scf.for %i = %c0 to %hi step %hi {
    %tile = memref.alloca() : memref<8xvector<8xf32>>
    %x = loop.strided_load %A[%i] by 80 where %first else %zero : memref<640xf32>, vector<8xf32>
    %y = loop.strided_load %A[%i] by 2 : memref<640xf32>, vector<8xf32>
    memref.store %x, %tile[%c0] : memref<8xvector<8xf32>>
    loop.transpose %tile[%c0] : memref<8xvector<8xf32>>
    %more = loop.lane_compare ogt, %x, %y : vector<8xf32>
    %z = loop.lane_select %more, %x, %y : vector<8xf32>
    %b = vector.load %B[%i] : memref<64xi8>, vector<8xi8>
    %w = loop.lane_convert %b : vector<8xi8> to vector<8xf32>
    loop.strided_store %z, %C[%i] by 80 where %inside : memref<640xf32>, vector<8xf32>
    loop.strided_store %w, %C[%i] by 3 : memref<640xf32>, vector<8xf32>
    scf.yield
  }
  func.return
}

func.func @main() attributes {arena_bytes = 0 : i64} {
  host.return
}

// CHECK:      "func.func"() <{sym_name = "k"
// The buffer on the stack is allocated once.
// CHECK:      "memref.alloca"()
// CHECK-NOT:  prefetch
// A mask from the first lane on, and any other.
// CHECK:      %first = "vector.create_mask"(%hi) : (index) -> vector<8xi1>
// CHECK:      %[[BELOW:.*]] = "vector.create_mask"(%hi)
// CHECK-NEXT: %[[BEFORE:.*]] = "vector.create_mask"(%lo)
// CHECK-NEXT: %[[ALL:.*]] = "arith.constant"() <{value = dense<true> : vector<8xi1>}>
// CHECK-NEXT: %[[BEHIND:.*]] = "arith.xori"(%[[BEFORE]], %[[ALL]])
// CHECK-NEXT: %inside = "arith.andi"(%[[BELOW]], %[[BEHIND]])
// CHECK:      "scf.for"
// CHECK:      %[[PLACES:.*]] = "arith.constant"() <{value = dense<[0, 80, 160, 240, 320, 400, 480, 560]> : vector<8xi64>}>
// CHECK-NEXT: %x = "vector.gather"(%A, %i, %[[PLACES]], %first, %zero)
// CHECK:      %y = "vector.gather"
// CHECK:      "vector.insert"({{.*}}) <{static_position = array<i64: 7>}>
// CHECK-NEXT: "vector.transpose"({{.*}}) <{permutation = array<i64: 1, 0>}>
// CHECK-NEXT: "vector.extract"({{.*}}) <{static_position = array<i64: 0>}>
// CHECK:      %more = "arith.cmpf"(%x, %y) <{predicate = 2 : i64}> : (vector<8xf32>, vector<8xf32>) -> vector<8xi1>
// CHECK-NEXT: %z = "arith.select"(%more, %x, %y)
// CHECK:      %w = "arith.sitofp"(%b)
// CHECK:      "vector.scatter"(%C, %i, {{.*}}, %inside, %z)
// CHECK:      "vector.scatter"(%C, %i, {{.*}}, {{.*}}, %w)
// CHECK-NOT:  @main
// CHECK-NOT:  loop.
